//! The guide: every command of every page runs, in order, in one directory, and prints the output
//! on the page. `...` matches any text in a line or, alone, any lines. Only `console` blocks have
//! commands, and every page must have one.

use std::fs;
use std::path::{Path, PathBuf};

use super::support::Sandbox;
use crate::common::page::{ConsoleStep, fits, steps};

fn run_page(page: &Path) {
    let sandbox = Sandbox::new();
    let steps = steps(&fs::read_to_string(page).expect("a page"));
    assert!(!steps.is_empty(), "{} has no commands", page.display());
    let state = sandbox.path.join("out/cwd");
    fs::create_dir(sandbox.path.join("work")).expect("mkdir");
    fs::write(&state, sandbox.path.join("work").display().to_string()).expect("state");
    for ConsoleStep { command, said } in &steps {
        let mut shell = sandbox.hermetic("bash", "work");
        // The page shows stderr and stdout together, as a terminal does.
        shell
            .arg("-c")
            .arg(format!("cd \"$(cat \"$STATE\")\" && {{ {command}\n}} 2>&1; status=$?; pwd > \"$STATE\"; exit $status"))
            .env("STATE", &state);
        let ran = sandbox.run(shell);
        let out = ran.out();
        assert_eq!(ran.code, 0, "{}: $ {command}\n{out}", page.display());
        assert!(
            fits(said, &out.lines().collect::<Vec<_>>()),
            "{}: $ {command}\nprinted\n{out}\nbut the page has\n{}",
            page.display(),
            said.join("\n")
        );
    }
    assert!(
        sandbox.mounts().is_empty(),
        "{} leaves nothing mounted",
        page.display()
    );
}

#[test]
fn every_command_of_the_guide_says_what_the_guide_says() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide");
    let mut pages: Vec<PathBuf> = fs::read_dir(&dir)
        .expect("docs/guide")
        .map(|entry| entry.expect("entry").path())
        .collect();
    pages.retain(|page| {
        page.extension().is_some_and(|found| found == "md") && !page.ends_with("README.md")
    });
    pages.sort();
    let index = fs::read_to_string(dir.join("README.md")).expect("the index");
    for page in &pages {
        let name = page
            .file_name()
            .expect("name")
            .to_string_lossy()
            .into_owned();
        assert!(
            index.contains(&format!("({name})")),
            "{name} is in the index"
        );
        run_page(page);
    }
    assert!(pages.len() >= 3, "{pages:?}");
}

#[test]
fn what_does_not_fit_is_noticed() {
    let told = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(
        fits(&told("a\n...\nb ... d"), &["a", "x", "y", "b c d"])
            && fits(&told("..."), &[])
            && fits(&told("a ...b"), &["a b"])
    );
    assert!(
        !fits(&told("a"), &["a", "b"])
            && !fits(&told("a\n...\nb"), &["a", "c"])
            && !fits(&told("a...c"), &["a b"])
            && !fits(&told(""), &["a"])
    );
    let steps = steps("text\n```console\n$ one\nsaid\n$ two\n```\n$ no command\n");
    assert_eq!(
        (
            steps.len(),
            steps[0].said.as_slice(),
            steps[1].command.as_str()
        ),
        (2, ["said".to_owned()].as_slice(), "two")
    );
}
