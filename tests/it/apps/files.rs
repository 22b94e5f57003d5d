//! Tools that copy files, and editors.

use std::fs;
use std::path::Path;

use crate::apps::support::{ReferenceCopy, crates, missing, output, run, shell, variants};
use crate::common::{Rig, TreeOpts, Variant, assert_same_tree, copy_tree, sample_tree, skip};

/// Makes a tree with every kind of file, and real sources.
fn source(rig: &Rig) -> Option<std::path::PathBuf> {
    let source = rig.image.dir("source");
    let crates = crates(1)?;
    fs::create_dir(source.join("sample")).unwrap();
    sample_tree(&source.join("sample"));
    for (number, of) in crates.iter().take(1).enumerate() {
        run(
            &source,
            "cp",
            &[
                "-a".as_ref(),
                of.as_os_str(),
                format!("crate-{number}").as_ref(),
            ],
        );
    }
    Some(source)
}

#[track_caller]
fn same(a: &Path, b: &Path) {
    assert_same_tree(
        a,
        b,
        &TreeOpts {
            dir_mtime: true,
            ..TreeOpts::default()
        },
    );
}

fn copying(v: Variant) {
    if let Some(reason) = missing(&["tar", "rsync"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let Some(source) = source(&rig) else {
        return skip("cargo has fetched no crates to copy");
    };
    let (dir, from) = (rig.path(), source.to_str().unwrap());
    let tar = "tar --xattrs --xattrs-include='*' --acls";
    shell(
        dir,
        &format!(
            "{tar} -C {from} -cf ../x.tar . 2>/dev/null; mkdir untarred; {tar} --same-owner -C untarred -xpf ../x.tar"
        ),
    );
    // tar does not archive sockets.
    fs::remove_file(source.join("sample/socket")).unwrap();
    same(&dir.join("untarred/crate-0"), &source.join("crate-0"));
    let untarred = ReferenceCopy::now(&rig, "untarred");

    run(dir, "rsync", &["-aHAX", &format!("{from}/"), "synced/"]);
    same(&dir.join("synced"), &source);
    run(dir, "cp", &["-a", "synced", "copied"]);
    same(&dir.join("copied"), &source);
    let all = ReferenceCopy::now(&rig, "all");

    assert_eq!(
        output(
            dir,
            "rsync",
            &["-aHAXnci", "--delete", &format!("{from}/"), "synced/"]
        ),
        ""
    );
    let listed = output(dir, "bash", &["-c", "find . | LC_ALL=C sort"]);
    assert!(
        !listed.contains(".snapshots") && !listed.contains(".ckptfs"),
        "find descends into .ckptfs"
    );
    shell(
        dir,
        "rm -rf untarred synced; mv copied moved; find moved -name '*.rs' -newermt 2000-01-01 -delete; chmod -R go-rwx moved/crate-0",
    );
    let fewer = ReferenceCopy::now(&rig, "fewer");
    for moment in [&untarred, &fewer, &all] {
        moment.restore(&rig);
    }
    assert_eq!(
        output(dir, "bash", &["-c", "find . | LC_ALL=C sort"]),
        listed
    );
    a_view_is_as_a_copy(&rig, tar);
}

/// Asserts that tools find no difference between a view and a plain copy made at the same time.
fn a_view_is_as_a_copy(rig: &Rig, tar: &str) {
    let dir = rig.path();
    let (view, copy) = (
        rig.view(rig.mount.checkpoint()),
        rig.image.path().join("plain"),
    );
    copy_tree(dir, &copy);
    // diff reports special files of the same type as different; rsync and tar do not.
    let special = "-x fifo -x socket -x block -x null";
    shell(
        dir,
        &format!(
            "diff -r --no-dereference {special} {}/untarred {}/untarred",
            view.display(),
            copy.display()
        ),
    );
    let (view, copy) = (
        format!("{}/", view.display()),
        format!("{}/", copy.display()),
    );
    assert_eq!(
        output(dir, "rsync", &["-aHAXnci", "--delete", &view, &copy]),
        ""
    );
    let archive = rig.image.path().join("plain.tar");
    shell(
        dir,
        &format!(
            "{tar} -C {copy} -cf {0} . 2>/dev/null; {tar} -C {view} -df {0}",
            archive.display()
        ),
    );
}

fn editing(v: Variant) {
    if let Some(reason) = missing(&["patch", "diff", "sed"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let Some(sources) = crates(1) else {
        return skip("cargo has fetched no crates to edit");
    };
    let dir = rig.path();
    run(
        dir,
        "cp",
        &["-r".as_ref(), sources[0].as_os_str(), "work".as_ref()],
    );
    let fresh = ReferenceCopy::now(&rig, "fresh");

    shell(
        dir,
        "find work -path '*/backend/*' -name '*.rs' | xargs sed -i 's/pub fn/pub  fn/'",
    );
    let edited = ReferenceCopy::now(&rig, "edited");
    let view = rig.view(1);
    shell(
        dir,
        &format!(
            "diff -ru {}/work work >../the.patch || [ $? = 1 ]; test -s ../the.patch",
            view.display()
        ),
    );
    fresh.restore(&rig);
    shell(dir, "patch -s -p1 -d work <../the.patch");
    shell(dir, &format!("diff -r {}/work work", rig.view(2).display()));
    let patched = ReferenceCopy::now(&rig, "patched");

    // As editors save: a new file renamed over the old one, which may first be renamed to a backup;
    // and a write in place.
    shell(
        dir,
        "cd work; for f in Cargo.toml README.md src/lib.rs; do cp -p $f $f~; (cat $f; echo saved) >$f.new; mv $f.new $f; done
         ln Cargo.toml linked; mv Cargo.toml Cargo.toml.bak; sed 's/name/NAME/' Cargo.toml.bak >Cargo.toml; echo more >>linked; rm README.md~",
    );
    let saved = ReferenceCopy::now(&rig, "saved");
    if missing(&["python3"]).is_none() {
        shell(
            dir,
            "python3 -m venv --without-pip env && env/bin/python -c 'import sys; assert sys.prefix.endswith(\"env\")'",
        );
    }
    if missing(&["vim"]).is_none() {
        shell(
            dir,
            "vim -es -u NONE -i NONE -c 'set backup writebackup backupcopy=no' -c '%s/saved/by vim/' -c wq work/src/lib.rs; tail -n 1 work/src/lib.rs | grep -q 'by vim'",
        );
    }
    let last = ReferenceCopy::now(&rig, "last");
    run(dir, "rm", &["-rf", "work", "env"]);
    for moment in [&fresh, &last, &patched] {
        moment.restore(&rig);
    }
    for moment in [fresh, edited, patched, saved, last] {
        moment.is_seen(&rig);
    }
}

variants! { copying => xfs_daemon, btrfs_passthrough }
variants! { editing => xfs_passthrough, btrfs_daemon }
