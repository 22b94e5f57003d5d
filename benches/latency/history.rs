//! Lookups in a history of 10,000 checkpoints, whose cost must not grow with the list.

use std::path::Path;
use std::process::Stdio;

use crate::common::{Fs, Image, Io, Mount, MountOpts};
use crate::report::{Bound, Report};
use crate::shared::stats::{Samples, ms};
use ckptfs_api::{
    CheckpointOptions, Client, Delete, Query, ShowCheckpoint, StateName, UndoOptions, UndoWalk,
};

const CHECKPOINTS: usize = 10_000;
/// One checkpoint in this many has a tag.
const TAGGED: usize = 10;
/// An image large enough for their records.
const IMAGE_BYTES: u64 = 1 << 30;
const PAGE_MS: f64 = 10.0;
const FIND_MS: f64 = 1.0;

type Ask<'a> = (String, Box<dyn FnMut() + 'a>, Option<f64>);

/// Makes the checkpoints, none with a change, and adds the table.
pub fn measure(fs: Fs, quick: bool, report: &mut Report) {
    let image = Image::new(fs, IMAGE_BYTES);
    let project = image.dir("project");
    std::fs::write(project.join("file"), "content").expect("a file");
    let opts = MountOpts {
        mountpoint: Some(image.dir("mounted")),
        ..MountOpts::new(Io::Passthrough)
    };
    let mut mount = Mount::start(&project, &opts);
    make(&mut client(&project));
    let rounds = if quick { 20 } else { 200 };
    for (what, mut call, bound) in asks(&mount, &project) {
        let mut samples = Samples::default();
        call();
        (0..rounds).for_each(|_| samples.time(&mut call));
        tell(fs, &what, &samples, bound, report);
    }
    mount.umount();
    let mut samples = Samples::default();
    for _ in 0..if quick { 2 } else { 10 } {
        samples.time(|| mount.remount());
        mount.umount();
    }
    tell(
        fs,
        "mounting, until the first reply",
        &samples,
        None,
        report,
    );
}

/// Returns the measured queries with their time limits.
fn asks<'a>(mount: &'a Mount, project: &Path) -> Vec<Ask<'a>> {
    let processes: [(&str, &[&str], Option<f64>); 5] = [
        ("log -n 50`", &["log", "-n", "50"], Some(PAGE_MS)),
        (
            "log -n 50 --before 5000`",
            &["log", "-n", "50", "--before", "5000"],
            Some(PAGE_MS),
        ),
        (
            "log -n 50 --graph`",
            &["log", "-n", "50", "--graph"],
            Some(PAGE_MS),
        ),
        ("ops`", &["ops"], Some(PAGE_MS)),
        ("log`: all of them", &["log"], None),
    ];
    let tagged = |tag: &str| Query {
        tag: Some(tag.to_owned()),
        ..Query::default()
    };
    let by_root = Query {
        uid: Some(0),
        limit: Some(50),
        ..Query::default()
    };
    let queries = [
        (
            "`find --tag` of one tag, round trip",
            tagged("tag-5000"),
            1,
            Some(FIND_MS),
        ),
        (
            "`find --tag 'tag-99*'`: eleven matches, round trip",
            tagged("tag-99*"),
            11,
            Some(FIND_MS),
        ),
        (
            "`find --tag` of a tag that does not exist",
            tagged("none"),
            0,
            Some(FIND_MS),
        ),
        ("`find --author`, the newest 50", by_root, 50, None),
    ];
    let mut asks: Vec<Ask<'a>> = Vec::new();
    for (what, arguments, bound) in processes {
        let run = move || runs(mount, arguments);
        asks.push((format!("the process `ckptfs {what}"), Box::new(run), bound));
    }
    for (what, query, found, bound) in queries {
        let mut client = client(project);
        let ask = move || assert_eq!(client.ask(query.clone()).expect("an answer").len(), found);
        asks.push((what.to_owned(), Box::new(ask), bound));
    }
    let mut shows = client(project);
    let show = move || {
        let state = StateName("7777".into());
        shows.ask(ShowCheckpoint { state }).expect("it exists");
    };
    asks.push(("`show` by number".to_owned(), Box::new(show), Some(FIND_MS)));
    let mut undoes = client(project);
    let there_and_back = move || delete_and_undo(&mut undoes);
    let what = "`delete` and `undo`, two round trips each".to_owned();
    asks.push((what, Box::new(there_and_back), None));
    asks
}

fn runs(mount: &Mount, arguments: &[&str]) {
    let mut command = mount.command(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().expect("the binary can be started");
    assert!(status.success(), "{arguments:?}");
}

fn delete_and_undo(client: &mut Client) {
    client
        .ask(Delete {
            state: StateName("5000".into()),
            now: false,
        })
        .expect("the call succeeds");
    client
        .ask(UndoOptions {
            walk: UndoWalk::Undo(1),
            skip: false,
            force: true,
            dry_run: false,
        })
        .expect("the undo succeeds");
}

fn client(project: &Path) -> Client {
    let store = std::fs::File::open(project.join(".ckptfs")).expect("the store exists");
    Client::connect(&store).expect("the daemon listens")
}

fn make(client: &mut Client) {
    for number in 1..=CHECKPOINTS {
        let tags = if number.is_multiple_of(TAGGED) {
            vec![format!("tag-{number}")]
        } else {
            Vec::new()
        };
        let options = CheckpointOptions {
            note: format!("step {number}\nsession: {}", number % 7),
            tags,
            ..CheckpointOptions::default()
        };
        client
            .ask(options)
            .unwrap_or_else(|error| panic!("checkpoint {number}: {error}"));
    }
}

fn tell(fs: Fs, what: &str, samples: &Samples, bound: Option<f64>, report: &mut Report) {
    let mut row = vec![
        fs.name().to_owned(),
        what.to_owned(),
        samples.len().to_string(),
    ];
    row.extend([samples.p50(), samples.p99(), samples.max()].map(ms));
    row.push(bound.map_or_else(|| "-".to_owned(), |limit| format!("{limit}")));
    let head = [
        "filesystem",
        "what",
        "rounds",
        "p50 ms",
        "p99 ms",
        "max ms",
        "limit ms",
    ];
    report.row(
        "history",
        "Naming and finding in 10,000 checkpoints",
        &head,
        row,
    );
    if let Some(limit) = bound {
        report.bound(
            fs.name(),
            &Bound {
                what: format!("10,000 checkpoints: {what}, p50"),
                limit,
                measured: samples.p50() / 1e3,
                unit: "ms",
            },
        );
    }
}
