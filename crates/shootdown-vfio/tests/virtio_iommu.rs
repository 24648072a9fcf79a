//! The example's virtio-iommu device, case by case, on the dry backend.
#![allow(missing_docs)]

#[path = "../examples/virtio_iommu/model/mod.rs"]
mod model;

use model::cases::{LIMITS, all};
use model::guest::Guest;
use model::platform::DryPlatform;

#[test]
fn a_guest_s_iommu_in_front_of_the_kernel_s() {
    for (name, case) in all::<DryPlatform>() {
        println!("{name}");
        case(&mut Guest::new(DryPlatform::default(), LIMITS).unwrap());
    }
}
