//! Which kind of tags is in use, and which tags belong to it.

use crate::base::ids::Tag;
use crate::port::facts::{Broadcast, SplitTables, TagScope};
use crate::port::platform::Platform;
use crate::port::policy::Strategy;
use crate::port::regime::Regime;
use crate::tags::broadcast::SharedTags;
use crate::tags::versioned::Versioned;

/// Are hardware tags in use?
#[inline]
pub(crate) fn tags_on<P: Platform>() -> bool {
    P::policy().tags && P::Regime::facts().tag_scope != TagScope::None
}

/// Do tags mean the same on every CPU? (`online` refuses such facts where the platform has no
/// allocator for such tags.)
#[inline]
pub(crate) fn machine_wide<P: Platform>() -> bool {
    P::Tags::EXIST && P::policy().tags && P::Regime::facts().tag_scope == TagScope::System
}

/// The strategy that decides how far an invalidation must reach, where hardware reaches every CPU.
/// `None`: the CPUs concerned are interrupted.
#[inline]
pub(crate) fn strategy<P: Platform>() -> Option<Strategy> {
    match P::Regime::facts().broadcast {
        Broadcast::Tlbi { .. } if machine_wide::<P>() => P::policy().broadcast,
        _ => None,
    }
}

/// The allocator of global tags, where spaces may get one beside slots.
///
/// There is none with split tables: a CPU records by slot for which user halves an invalidation is
/// pending, and under which tags a kernel range was invalidated.
#[inline]
pub(crate) fn shared<P: Platform>() -> Option<&'static SharedTags> {
    let facts = P::Regime::facts();
    match (facts.broadcast, facts.tag_scope, facts.split_tables) {
        (Broadcast::Invlpgb { .. }, TagScope::PerCpu, SplitTables::No) if P::policy().tags => {
            P::shared_tags().filter(|_| P::policy().shared.every != 0)
        }
        _ => None,
    }
}

/// Does hardware invalidate on every CPU, whatever the tag?
#[inline]
pub(crate) fn reaches_everyone<P: Platform>() -> bool {
    strategy::<P>().is_some() || shared::<P>().is_some()
}

/// The tag of the user half that goes with a kernel-half tag: the odd one of a machine-wide pair;
/// otherwise with the highest bit of the tag space.
#[must_use]
pub(crate) fn user_tag<P: Platform>(tag: Tag) -> Tag {
    match P::Regime::facts().split_tables {
        SplitTables::Yes { .. } if machine_wide::<P>() => Tag(tag.0 | 1),
        SplitTables::Yes { .. } if tags_on::<P>() => {
            Tag(tag.0 | 1 << (P::Regime::facts().tag_bits - 1))
        }
        _ => tag,
    }
}
