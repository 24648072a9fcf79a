//! VMX and SVM instructions whose every failure is handled, and the host's control bits in force in the guest.
#![no_std]

#[cfg(test)]
extern crate std;
