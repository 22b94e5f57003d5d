//! Output for shells and metric collectors: `prompt`, and `status --metrics`.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::support::Sandbox;
use crate::common::prometheus::samples;
use crate::common::wait::WAIT;

#[test]
fn a_prompt_has_the_checkpoint_and_whether_something_changed() {
    let sandbox = Sandbox::new();
    sandbox.file("p/a", "one");
    // Without a mount or a directory, a shell prompt shows nothing, and no error.
    for dir in ["p", "out"] {
        sandbox.ckptfs_in(dir, &["prompt"]).is(0, "", "");
    }
    sandbox.ckptfs(&["-C", "gone", "prompt"]).is(0, "", "");
    sandbox.ckptfs(&["mount", "p"]).ok();
    // On a busy machine the daemon may reply too late: then the output is empty, and never wrong.
    let shows = |prompt: &str| {
        let began = Instant::now();
        let mut ran = sandbox.ckptfs_in("p", &["prompt"]);
        while ran.stdout.is_empty() && began.elapsed() < WAIT {
            ran = sandbox.ckptfs_in("p", &["prompt"]);
        }
        ran.is(0, prompt, "");
    };
    shows("-*\n");
    sandbox.ckptfs_in("p", &["checkpoint"]).ok();
    shows("1\n");
    sandbox.file("p/a", "two");
    shows("1*\n");
    sandbox.ckptfs_in("p", &["checkpoint"]).ok();
    shows("2\n");
    sandbox.ckptfs_in("p", &["restore", "1"]).ok();
    // The guard is 3, and the tree equals 1.
    shows("1\n");
    // Changed back: nothing differs.
    sandbox.file("p/a", "three");
    sandbox.file("p/new", "");
    shows("1*\n");
    sandbox.file("p/a", "one");
    fs::remove_file(sandbox.path.join("p/new")).expect("rm");
    let status = sandbox.ckptfs_in("p", &["status", "--json"]).ok().json();
    let changed = !status["dirty"].as_array().expect("a list").is_empty();
    shows(if changed { "1*\n" } else { "1\n" });
    let json = if changed { "true" } else { "false" };
    let json = format!("{{\"base\":1,\"changed\":{json}}}\n");
    let ran = sandbox.ckptfs_in("p", &["prompt", "--json"]).ok();
    assert!(ran.stdout.is_empty() || ran.out() == json, "{}", ran.out());
    sandbox.ckptfs(&["umount", "p"]).ok();
    sandbox.ckptfs_in("p", &["prompt"]).is(0, "", "");
}

#[test]
fn metrics_are_read_by_a_parser_of_prometheus() {
    let sandbox = Sandbox::new();
    // Characters that end a label or a line.
    let name = "odd \"name\"\\";
    sandbox.file(Path::new(name).join("a"), "one");
    sandbox.ckptfs(&["mount", name]).ok();
    sandbox.ckptfs_in(name, &["checkpoint"]).ok();
    sandbox.file(Path::new(name).join("a"), "two");
    let ran = sandbox.ckptfs_in(name, &["status", "--metrics"]).ok();
    let text = String::from_utf8_lossy(&ran.stdout);
    let Some(samples) = samples(&text) else {
        return;
    };
    let mount = sandbox.path.join(name).display().to_string();
    assert!(
        samples.iter().all(|sample| sample[2]["mount"] == *mount),
        "{samples:?}"
    );
    let value = |name: &str| {
        let sample = samples.iter().find(|sample| sample[0] == name);
        sample.unwrap_or_else(|| panic!("{name} in {samples:?}"))[3]
            .as_f64()
            .expect("a number")
    };
    assert_eq!(
        (
            value("ckptfs_checkpoints"),
            value("ckptfs_changed_paths"),
            value("ckptfs_latest_checkpoint")
        ),
        (1.0, 1.0, 1.0)
    );
    assert!(value("ckptfs_resident_memory_bytes") > 1e6);
    assert!(value("ckptfs_start_time_seconds") > 1.7e9);
    assert!(value("ckptfs_newest_checkpoint_time_seconds") > 1.7e9);
    assert!(value("ckptfs_filesystem_size_bytes") > value("ckptfs_filesystem_avail_bytes"));
    assert!(value("ckptfs_history_bytes") < 1e6);
    assert!(!text.contains("ckptfs_last_gc_time_seconds"), "{text}");
    sandbox.ckptfs_in(name, &["gc", "--keep-last", "1"]).ok();
    let text = sandbox.ckptfs_in(name, &["status", "--metrics"]).ok().out();
    assert!(text.contains("\nckptfs_last_gc_time_seconds{"), "{text}");
    let lookups = samples
        .iter()
        .find(|sample| sample[0] == "ckptfs_requests_total" && sample[2]["kind"] == "lookup");
    assert!(
        lookups.is_some_and(|sample| sample[1] == "counter"),
        "{samples:?}"
    );
    sandbox.ckptfs(&["umount", name]).ok();
}
