//! Failed before: looking up a volume created a pool.

use std::fs;

use super::support::Sandbox;

#[test]
fn what_looks_for_a_volume_makes_no_pool() {
    let sandbox = Sandbox::new();
    let pool = sandbox.path.join("pool");
    fs::create_dir(&pool).unwrap();
    let ckptfs = |arguments: &[&str]| {
        let mut command = sandbox.hermetic(env!("CARGO_BIN_EXE_ckptfs"), "");
        command.env("CKPTFS_VOLUMES", &pool).args(arguments);
        sandbox.run(command)
    };
    ckptfs(&["volumes", "ls"]).is(0, "", "");
    ckptfs(&["volumes", "ls", "--json"]).is(0, "[]\n", "");
    for verb in ["rm", "inspect", "recover", "purge"] {
        let ran = ckptfs(&["volumes", verb, "x"]);
        assert_eq!(ran.code, 1, "{}", ran.err());
        assert!(
            ran.err().contains("there are no volumes in "),
            "{}",
            ran.err()
        );
    }
    assert_eq!(ckptfs(&["--volume", "x", "status"]).code, 1);
    assert_eq!(fs::read_dir(&pool).unwrap().count(), 0);
}
