//! The cost of deleting one checkpoint does not depend on the number of checkpoints.

use std::fs::{self, File};
use std::time::Instant;

use crate::common::random::is_long;
use crate::common::space::noise;
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant};
use ckptfs_api::{CheckpointOptions, Client, Delete, Fault, StateName};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::FaultPlan;

for_each_variant! { xfs => deleting_one_costs_what_changed_around_it }

/// Files that change between two checkpoints.
const FILES: u64 = 20;

fn deleting_one_costs_what_changed_around_it(v: Variant) {
    let many = if is_long() { 1000 } else { 200 };
    let (few_calls, few_us) = delete_among(v, 10);
    let (many_calls, many_us) = delete_among(v, many);
    println!(
        "{v:?}: deleting one of 10: {few_calls} calls, {few_us} us; one of {many}: {many_calls} calls, {many_us} us"
    );
    // Background threads of the daemon also make calls.
    assert!(
        many_calls <= few_calls + 100,
        "{many_calls} calls among {many}, {few_calls} among 10"
    );
}

/// Returns the daemon's system calls and the time for deleting the middle one of `count`
/// checkpoints.
fn delete_among(v: Variant, count: u64) -> (u64, u64) {
    let image = Image::in_memory(v.fs, 512 << 20);
    let (backing, point) = (image.dir("project"), image.dir("here"));
    // The sealer would hash captured versions and share equal ones at the same time.
    let mount = Mount::start(
        &backing,
        &MountOpts {
            mountpoint: Some(point),
            ..MountOpts::new(v.io).arg("--seal=off")
        },
    );
    let mut client = Client::connect(File::open(backing.join(".ckptfs")).unwrap()).unwrap();
    for round in 0..count {
        for file in 0..FILES {
            fs::write(
                mount.path().join(format!("f{file}")),
                noise(512, round * FILES + file),
            )
            .unwrap();
        }
        client.ask(CheckpointOptions::default()).unwrap();
    }
    client
        .ask(Fault {
            plan: Some(FaultPlan::nth(0, Errno::EIO)),
        })
        .unwrap();
    let began = Instant::now();
    client
        .ask(Delete {
            state: StateName((count / 2).to_string()),
            now: true,
        })
        .unwrap();
    let took_us = began.elapsed().as_micros() as u64;
    let (calls, _) = client.ask(Fault { plan: None }).unwrap();
    assert!(calls >= FILES, "its versions were removed: {calls}");
    (calls, took_us)
}
