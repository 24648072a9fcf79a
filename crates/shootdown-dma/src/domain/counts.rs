//! What a domain has done: one counter on the CPU's own line for each.

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counts since the domain was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Counts {
            /// Name, value and meaning of each, as a kernel would show them.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($name), self.$name, concat!($($doc),+).trim_ascii_start()),)*].into_iter()
            }

            /// Adds another CPU's.
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Mappings made.
    maps,
    /// Pages mapped.
    mapped_pages,
    /// Mappings taken away.
    unmaps,
    /// Pages unmapped.
    unmapped_pages,
    /// Times that somebody waited for the hardware.
    waits,
    /// Times that somebody had to, because too much was deferred already.
    forced_waits,
    /// Batches submitted because enough was deferred.
    flushes,
    /// Batches submitted because of their age.
    timed_flushes,
    /// Pages of tables taken out because they were empty.
    swept_tables,
    /// Mappings whose address follows from the memory's.
    identities,
    /// Mappings whose address could not follow from the memory's.
    fallbacks,
    /// What can't come back, as there was no memory to note that it is deferred when the hardware
    /// did not answer, or the allocator had none; and ranges of addresses that the allocator had
    /// handed out, and somebody else was found to use.
    lost,
}
