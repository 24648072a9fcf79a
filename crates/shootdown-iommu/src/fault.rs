//! What all units record of an access that they refused. Each unit's own record has more, and is
//! kept whole.

use shootdown_dma::DeviceId;

/// How memory was accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It was read, or code was fetched.
    Read,
    /// It was written.
    Write,
}

/// What was wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Class {
    /// There is no translation, or none with this right.
    Translation,
    /// The device's entry, or what it leads to before the tables, is not valid or does not allow
    /// such requests.
    Configuration,
    /// The unit could not read its own structures in memory, or reserved bits in them are set.
    Structure,
    /// An interrupt was refused.
    Interrupt,
    /// A command was refused, or a device has not acknowledged one.
    Command,
    /// Records were lost.
    Lost,
    /// Something else.
    Other,
}

/// An access that a unit has refused, or another event that it has recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The device that made it.
    pub device: Option<DeviceId>,
    /// The process address space that it named.
    pub pasid: Option<u32>,
    /// The address that it used; the page's address if the unit records only the page.
    pub address: Option<u64>,
    /// How memory was accessed.
    pub access: Option<Access>,
    /// What was wrong.
    pub class: Class,
}
