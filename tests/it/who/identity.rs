//! Process identity: reused process ids, control groups.

use std::fs;
use std::path::Path;

use super::support::WriterRig;
use crate::common::command::sh;
use crate::common::{Variant, for_each_variant, skip};

for_each_variant! { xfs =>
    processes_are_told_apart_by_number_and_group,
    a_number_that_is_used_again_is_another_process,
    a_control_group_is_a_writer,
}

fn processes_are_told_apart_by_number_and_group(v: Variant) {
    let stage = WriterRig::start(v, |dir| drop(sh(dir, "echo a > a; echo b > b; echo c > c")));
    stage.rig.mount.checkpoint();
    let (mut one, mut two) = (stage.begins("same"), stage.begins("same"));
    one.does("add('a', 1)");
    two.does("add('b', 1); add('c', 1)");
    let all = stage.rig.mount.json(&["status", "--by", "process"]);
    let pids: Vec<u64> = all["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .map(|one| one["pid"].as_u64().expect("a number"))
        .collect();
    assert!(
        pids.len() == 2 && pids.contains(&one.pid().into()) && pids.contains(&two.pid().into()),
        "{all}"
    );
    assert_eq!(all["processes"][0]["parent"], std::process::id());
    stage.take_back(&[&two.pid().to_string()]);
    assert_eq!(
        (stage.get("a"), stage.get("b"), stage.get("c")),
        ("a\n1".to_owned(), "b\n".to_owned(), "c\n".to_owned())
    );
}

/// `ns_last_pid` makes the kernel reuse a process id.
fn a_number_that_is_used_again_is_another_process(v: Variant) {
    let last = Path::new("/proc/sys/kernel/ns_last_pid");
    if fs::read_to_string(last)
        .ok()
        .and_then(|number| fs::write(last, number).ok())
        .is_none()
    {
        return skip("the next PID cannot be chosen here");
    }
    let stage = WriterRig::start_alone(v, |dir| drop(sh(dir, "echo a > a; echo b > b")));
    stage.rig.mount.checkpoint();
    let mut first = stage.begins("first");
    first.does("add('a', 1)");
    let pid = first.pid();
    drop(first);
    // A process id is cached for a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let second = (0..200).find_map(|_| {
        fs::write(last, (pid - 1).to_string()).expect("it could be written before");
        Some(stage.begins("second")).filter(|actor| actor.pid() == pid)
    });
    let Some(mut second) = second else {
        return skip("other processes took the PID each time");
    };
    second.does("add('a', 2); add('b', 2)");
    let all = stage.rig.mount.json(&["status", "--by", "process"]);
    let told = super::support::as_told(&all);
    assert_eq!(
        told,
        super::support::told(&[("a", &["first", "second"]), ("b", &["second"])])
    );
    // A process id alone is ambiguous; with the start time it is unique.
    let refused = stage
        .rig
        .mount
        .run(&["restore", "--only-by", &pid.to_string()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success()
            && said.contains("was used by 2 different processes")
            && said.contains("(second)"),
        "{said}"
    );
    let one = all["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .find(|one| one["name"] == "second")
        .expect("it exists");
    stage.take_back(&[&format!("{pid}@{}", one["start"])]);
    assert_eq!(
        (stage.get("a"), stage.get("b")),
        ("a\n12".to_owned(), "b\n".to_owned())
    );
}

/// A cgroup of the unified hierarchy, removed on drop.
struct Group(std::path::PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn unified() -> Option<&'static Path> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.join("cgroup.controllers").exists())
}

fn a_control_group_is_a_writer(v: Variant) {
    let Some(root) = unified() else {
        return skip("no unified hierarchy of control groups is mounted");
    };
    let group = Group(root.join(format!("ckptfs-who-{}-{:?}", std::process::id(), v.io)));
    if fs::create_dir(&group.0).is_err() {
        return skip("a control group cannot be created here");
    }
    let stage = WriterRig::start(v, |dir| drop(sh(dir, "echo a > a; echo b > b; echo c > c")));
    stage.rig.mount.checkpoint();
    let script = format!(
        "open(my $g, '>', '{}/cgroup.procs') or exit 3; print $g $$; close($g) or exit 3; add('a', 1); put('new', 1)",
        group.0.display()
    );
    let mut inside = stage.program("inside");
    let prelude = "sub out { my ($how, $to, $text) = @_; open(my $f, $how, $to) or die; print $f $text; close $f } sub put { out('>', @_) } sub add { out('>>', @_) }";
    match inside
        .args(["-we", &format!("{prelude} {script}")])
        .status()
        .expect("perl runs")
        .code()
    {
        Some(0) => {}
        Some(3) => return skip("no process can be put into a control group here"),
        other => panic!("{other:?}"),
    }
    stage.does("outside", "add('b', 1)");
    let all = stage.rig.mount.json(&["status", "--by", "process"]);
    let inside = all["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .find(|one| one["name"] == "inside")
        .expect("it exists");
    let path = inside["cgroup"].as_str().expect("a path").to_owned();
    assert!(
        path.ends_with(
            group
                .0
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a name")
        ),
        "{all}"
    );
    stage.take_back(&[&path]);
    assert!(stage.get("a") == "a\n" && stage.get("b") == "b\n1" && !stage.has("new"));
}
