//! The second domain ends, and begins again with the same numbers, perhaps in the same pages:
//! `ends=on`.

use shootdown_dma::invalidate::Attachment;

use super::devices::Traveller;
use super::domains::AnyDomain;
use super::driver::{Content, Driver};
use super::op::Buffer;
use super::world::{Kernel, SECOND};
use crate::hunt::{hw, io};
use crate::oracle::Invariant;

/// Its number.
const NUMBER: usize = 1;
/// Its buffers.
const OURS: [Buffer; 2] = [Buffer(1), Buffer(3)];

/// How often it may: there is not room for more in a run.
const MOST: u8 = 3;

impl Kernel {
    /// Does something with each domain; with the second only if nobody else is at it, where it may
    /// end.
    pub fn each_domain(&self, f: impl Fn(&dyn AnyDomain)) {
        f(self.domain(0));
        if self.config.has_end() {
            self.second.enter(|attachment| {
                f(self.domain(NUMBER));
                attachment
            });
        } else {
            self.all_domains().skip(1).for_each(f);
        }
    }

    /// The second domain ends if nobody is at it, and begins again.
    pub fn end_second(&'static self) {
        if !self.config.has_end() || self.ended.get() == MOST {
            return;
        }
        let [b, d] = OURS.map(|Buffer(b)| &self.slots[usize::from(b)]);
        b.enter(|in_b| {
            let mut left = in_b;
            d.enter(|in_d| {
                let mut left_d = in_d;
                self.traveller.enter(|at| {
                    if !matches!(at, Traveller::In(NUMBER, _)) {
                        self.second.enter(|attachment| {
                            left = self.clear(std::mem::take(&mut left), OURS[0]);
                            left_d = self.clear(std::mem::take(&mut left_d), OURS[1]);
                            self.begin_again(attachment)
                        });
                    }
                    at
                });
                left_d
            });
            left
        });
    }

    /// Nothing is mapped for a buffer any more.
    fn clear(&'static self, content: Content, buffer: Buffer) -> Content {
        let driver = Driver { kernel: self, number: NUMBER };
        match content {
            Content::Nothing => Content::Nothing,
            Content::Reserved(..) => driver.release(content),
            Content::Unmanaged(..) => driver.unmap_at(content, buffer),
            Content::Mapped(_) | Content::Bounced(..) => driver.unmap(content, self.config.policy),
        }
    }

    /// The device leaves, the domain ends, and another is made for it.
    fn begin_again(&self, attachment: Option<Attachment>) -> Option<Attachment> {
        self.ended.set(self.ended.get() + 1);
        io::write_entry(SECOND, io::Half::Low, 0);
        if let Some(attachment) = attachment
            && let Err((error, _)) = self.domain(NUMBER).detach(attachment)
        {
            hw::violation(Invariant::ErrorsTotal, format!("detaching fails: {error}"));
        }
        io::write_entry(SECOND, io::Half::High, 0);
        self.keep_a_table();
        // SAFETY: its only device has left, and who would use it comes by one of the slots that are
        // ours just now.
        if let Err(error) = unsafe { self.domain(NUMBER).end() } {
            hw::violation(Invariant::ErrorsTotal, format!("ending fails: {error}"));
        }
        self.make_anew(NUMBER);
        hw::witness("domain-ended");
        self.sit(NUMBER, 0, SECOND)
    }
}
