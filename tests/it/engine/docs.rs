//! docs/containers.md: every command runs, in order, and prints the output on the page.

use std::fs;
use std::path::Path;

use crate::common::command::try_run_limited;
use crate::common::has;
use crate::common::page::{ConsoleStep, fits, steps};
use crate::engine::on_an_engine;
use crate::engine::rig::Rig;

/// Seconds for one command of the page. The first start of a database initializes it.
const COMMAND_SECONDS: u64 = 180;

fn every_command_of_the_page_says_what_the_page_says() {
    for program in ["podman", "docker-compose", "pg_createcluster"] {
        if !has(program) {
            return crate::engine::skip(&format!("{program} is not installed (make deps)"));
        }
    }
    let rig = Rig::new();
    // Images have their registry names, but their content is local files.
    rig.sh("dk_start; dk_image; pm_image; pg_image; docker tag bb:local busybox; docker tag postgres:local postgres:17; podman tag bb:local busybox
        ln -s \"$PROJECT\" $W/ckptfs; mkdir $W/bin; page_programs; echo $W >$W/cwd");
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/containers.md"))
        .expect("the page");
    let steps = steps(&page);
    assert!(steps.len() > 20, "the page has {} commands", steps.len());
    for ConsoleStep { command, said } in &steps {
        let mut shell = rig.enter();
        let script = format!(
            ". \"$PROJECT/tests/it/engine/rig.sh\"; set +eu; page_environment; cd \"$(cat $W/cwd)\"; {{ {command}\n}} 2>&1; status=$?; pwd >$W/cwd; exit $status"
        );
        let output = try_run_limited(shell.arg("-c").arg(script), COMMAND_SECONDS)
            .unwrap_or_else(|problem| panic!("{problem}{}", rig.logs()));
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "$ {command}\n{out}{}{}",
            String::from_utf8_lossy(&output.stderr),
            rig.logs()
        );
        assert!(
            fits(said, &out.lines().collect::<Vec<_>>()),
            "$ {command}\nprinted\n{out}\nbut the page has\n{}",
            said.join("\n")
        );
    }
}

on_an_engine! { every_command_of_the_page_says_what_the_page_says }
