//! IOMMUs and devices, as a profile states them, and in the engine's units.

use serde::Deserialize;

use super::{Number, Profile};
use crate::time::Time;

macro_rules! part {
    ($(#[$doc:meta])* $spec:ident, $costs:ident, $prefix:literal;
     counts { $($(#[$count_doc:meta])* $count:ident,)* }
     times { $($(#[$time_doc:meta])* $time:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $spec {
            $($(#[$count_doc])* pub $count: Number,)*
            $($(#[$time_doc])* pub $time: Number,)*
        }

        #[doc = concat!("The same in the engine's units. Fields as in [`", stringify!($spec), "`].")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)] // named as in the specification, which documents them
        pub struct $costs {
            $(pub $count: u32,)*
            $(pub $time: Time,)*
        }

        impl $spec {
            pub(super) fn figures(&self) -> Vec<(String, &Number)> {
                vec![
                    $((concat!($prefix, ".", stringify!($count)).to_owned(), &self.$count),)*
                    $((concat!($prefix, ".", stringify!($time)).to_owned(), &self.$time),)*
                ]
            }

            /// Counts of which none may be 0.
            pub(super) fn counts(&self) -> Vec<(&'static str, &Number)> {
                vec![$((concat!($prefix, ".", stringify!($count)), &self.$count),)*]
            }

            /// In the engine's units, at this clock.
            #[must_use]
            pub fn costs(&self, ghz: f64) -> $costs {
                $costs { $($count: self.$count.count(),)* $($time: self.$time.time(ghz),)* }
            }
        }
    };
}

part! {
    /// An IOMMU: what it caches, and what it takes its time for.
    IommuSpec, IommuCosts, "iommu";
    counts {
        /// Entries of the IOTLB, of all page sizes.
        entries,
        /// Its ways; as many as entries if it is fully associative.
        ways,
        /// Cached ways to tables of the lowest level (2 MiB each).
        lower,
        /// The same a level up (1 GiB each).
        upper,
        /// The same at the level above (512 GiB each).
        top,
        /// Devices whose context entries are cached.
        contexts,
        /// Walks under way at a time.
        walkers,
    }
    times {
        /// Finding an entry in the IOTLB.
        hit,
        /// What a miss takes beside the reads of the walk.
        miss,
        /// Reading one word of a page table or a context table.
        read,
        /// The store to the queue's register, on the CPU that makes it.
        doorbell,
        /// Reading a register.
        register,
        /// From that store until the unit has fetched the first command.
        travel,
        /// A command for pages: nothing else is done meanwhile.
        pages,
        /// A command for a domain, or for all.
        domain,
        /// A wait command.
        wait,
        /// A command for a device: to the device and back.
        device,
        /// A device's own request for a translation: to the unit and back, the unit's work apart.
        ask,
    }
}

part! {
    /// A network card and what the kernel does with a packet.
    NicSpec, NicCosts, "nic";
    counts {
        /// Receive buffers that each queue has posted.
        ring,
        /// Packets sent after which an interrupt is due.
        sent,
        /// Descriptors of receive buffers that a queue of the card has room for.
        ahead,
        /// Descriptors that are worth a fetch.
        least,
    }
    times {
        /// The store to its register, on the CPU that makes it.
        doorbell,
        /// From that store until the card knows.
        travel,
        /// From one packet to the next, all queues together.
        packet,
        /// Reading memory: to the memory and back, translation apart.
        read,
        /// Writing memory: until it is there, translation apart.
        write,
        /// From an interrupt message to the CPU's entry.
        interrupt,
        /// From one interrupt of a queue to the next, at least.
        moderation,
        /// The kernel's and the program's work for a request that came, mapping and unmapping apart.
        receive,
        /// The same for the answer that is sent.
        send,
        /// From when an answer has left until the next request comes: wires and the other machine.
        remote,
    }
}

part! {
    /// Drives behind one IOMMU, taken together, and what the kernel does with a read.
    NvmeSpec, NvmeCosts, "nvme";
    counts {
        /// Reads that each CPU has under way.
        depth,
        /// Reads of the medium at a time.
        channels,
    }
    times {
        /// The store to its register, on the CPU that makes it.
        doorbell,
        /// From that store until the device knows.
        travel,
        /// From one command to the next, all queues together.
        command,
        /// Reading the medium for one command.
        medium,
        /// From one page to the next over the link.
        page,
        /// Reading memory: to the memory and back, translation apart.
        read,
        /// Writing memory: until it is there, translation apart.
        write,
        /// From an interrupt message to the CPU's entry.
        interrupt,
        /// The kernel's and the program's work for a read that begins, mapping apart.
        submit,
        /// The same when it is complete.
        complete,
    }
}

/// What a profile says of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCosts {
    /// The IOMMU.
    pub iommu: IommuCosts,
    /// The network card.
    pub nic: NicCosts,
    /// The drives.
    pub nvme: NvmeCosts,
    /// A line that this CPU does not have and the last-level cache has: descriptors that a device
    /// wrote.
    pub line: Time,
}

impl Profile {
    /// Its IOMMU and devices, if it states them all.
    #[must_use]
    pub fn devices(&self) -> Option<DeviceCosts> {
        let ghz = self.ghz.plain();
        Some(DeviceCosts {
            iommu: self.iommu.as_ref()?.costs(ghz),
            nic: self.nic.as_ref()?.costs(ghz),
            nvme: self.nvme.as_ref()?.costs(ghz),
            line: self.line.cache.time(ghz),
        })
    }

    /// Figures of devices with their names.
    pub(super) fn device_figures(&self) -> Vec<(String, &Number)> {
        let mut all = Vec::new();
        all.extend(self.iommu.iter().flat_map(IommuSpec::figures));
        all.extend(self.nic.iter().flat_map(NicSpec::figures));
        all.extend(self.nvme.iter().flat_map(NvmeSpec::figures));
        all
    }

    pub(super) fn check_devices(&self) -> Result<(), (&'static str, &'static str)> {
        let mut counts = Vec::new();
        counts.extend(self.iommu.iter().flat_map(IommuSpec::counts));
        counts.extend(self.nic.iter().flat_map(NicSpec::counts));
        counts.extend(self.nvme.iter().flat_map(NvmeSpec::counts));
        if let Some((name, _)) = counts.iter().find(|(_, number)| number.count() == 0) {
            return Err((name, "must be at least 1"));
        }
        match &self.iommu {
            Some(iommu) if iommu.entries.count() % iommu.ways.count() != 0 => {
                Err(("iommu.ways", "does not divide the entries"))
            }
            _ => Ok(()),
        }
    }
}
