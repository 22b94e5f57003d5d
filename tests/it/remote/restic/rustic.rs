//! rustic restores the pushed trees: its library always, and the program where it is installed.

use std::fs;
use std::path::Path;

use rustic_backend::BackendOptions;
use rustic_core::{
    Credentials, LocalDestination, LsOptions, Repository, RepositoryOptions, RestoreOptions,
    RusticResult,
};

use super::{PASSWORD, SECONDS, User};
use crate::common::command::{has, succeeds};
use crate::common::tree::{Tree, assert_same};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree, tool, tree_of};
use crate::export::support::history;

/// Restores the directory `root` of a snapshot with the library.
fn restore(repository: &Path, snapshot: &str, root: &str, into: &Path) -> RusticResult<()> {
    let backends = BackendOptions::default()
        .repository(repository.to_str().expect("UTF-8"))
        .to_backends()?;
    let repo = Repository::new(&RepositoryOptions::default().no_cache(true), &backends)?;
    let repo = repo.open(&Credentials::password(PASSWORD))?.to_indexed()?;
    let node = repo.node_from_snapshot_path(&format!("{snapshot}:/{root}"), |_| true)?;
    let all = repo.ls(&node, &LsOptions::default())?;
    let into = LocalDestination::new(into.to_str().expect("UTF-8"), true, false)?;
    let options = RestoreOptions::default();
    let plan = repo.prepare_restore(&options, all.clone(), &into, false)?;
    repo.restore(plan, &options, all, &into)
}

for_each_variant! { xfs => every_checkpoint_is_restored_by_rustic }

fn every_checkpoint_is_restored_by_rustic(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    let history = history(&rig);
    let user = User::new();
    let sent = user.push(&rig, &[]);
    assert_eq!(sent.len(), history.len());
    let root = rig.path().file_name().expect("a name");
    let root = root.to_str().expect("UTF-8");
    for (sent, (id, expected)) in sent.iter().zip(&history) {
        let into = user.dir.path().join(format!("restored-{id}"));
        fs::create_dir(&into).expect("mkdir");
        let snapshot = sent["snapshot"].as_str().expect("a number");
        let restored = restore(&user.repository(), snapshot, root, &into);
        restored.unwrap_or_else(|error| panic!("{}", error.display_log()));
        assert_same(&below(&into), &below_of(expected));
        let program = program();
        if let Some(program) = &program {
            let into = user.dir.path().join(format!("by-the-program-{id}"));
            let mut rustic = tool(program, &["-r"]);
            rustic
                .arg(user.repository())
                .args(["--password", PASSWORD, "--no-cache", "restore"]);
            rustic.arg(format!("{snapshot}:/{root}")).arg(&into);
            succeeds(&mut rustic, SECONDS);
            assert_same(&below(&into), &below_of(expected));
        }
    }
}

/// Returns the program, if installed. Building it takes eight minutes, so no test requires it.
fn program() -> Option<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/rustic");
    let found = own.exists().then(|| own.display().to_string());
    let found = found.or_else(|| has("rustic").then(|| "rustic".to_owned()));
    if found.is_none() {
        eprintln!("the program rustic is not installed: only its library was used");
    }
    found
}

/// rustic does not restore the attributes of the destination directory.
fn below(dir: &Path) -> Tree {
    below_of(&tree_of(dir))
}

fn below_of(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.remove(Path::new(""));
    tree
}
