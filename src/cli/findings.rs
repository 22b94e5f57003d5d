//! Output of `verify`.

use serde::Serialize;

use ckptfs_api::display::count;
use ckptfs_api::{Damage, TreePath, Verified};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::output::{Out, Role};

/// Output of `--json`.
#[derive(Serialize)]
struct VerifyReport<'a> {
    ok: bool,
    deep: bool,
    frames: u64,
    versions: u64,
    bytes: u64,
    unhashed: u64,
    findings: &'a [Damage],
    #[serde(skip_serializing_if = "<[TreePath]>::is_empty")]
    accepted: &'a [TreePath],
    #[serde(skip_serializing_if = "Option::is_none")]
    elsewhere: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    repaired: &'a [String],
}

/// Prints the result.
pub fn print(found: &Verified, deep: bool, repaired: &[String], context: &mut Context) -> Outcome {
    let Verified {
        frames,
        versions,
        bytes,
        unhashed,
        findings,
        accepted,
        elsewhere,
        ..
    } = found;
    let out = &mut context.out;
    if out.json {
        let ok = findings.is_empty();
        let report = VerifyReport {
            ok,
            deep,
            frames: *frames,
            versions: *versions,
            bytes: *bytes,
            unhashed: *unhashed,
            findings,
            accepted,
            elsewhere: elsewhere.as_deref(),
            repaired,
        };
        return Ok(out.json(&report)?);
    }
    print_damage(findings, out)?;
    for done in repaired {
        out.text_line(done)?;
    }
    if let Some(first) = accepted.first() {
        out.talk(&format!(
            "{} changed outside of the mount, accepted by size and modification time; the first is {}",
            count(accepted.len() as u64, "file"),
            out.text(&String::from_utf8_lossy(&first.0))
        ));
    }
    elsewhere.iter().for_each(|text| out.talk(text));
    let read = if deep {
        format!("{} read", count(*bytes, "byte"))
    } else {
        "not read (--deep does)".to_owned()
    };
    let hashes = if deep && *unhashed > 0 {
        format!("; {unhashed} not hashed yet")
    } else {
        String::new()
    };
    let verdict = match findings.len() {
        0 => "no damage found".to_owned(),
        many => count(many, "finding"),
    };
    out.talk(&format!(
        "{verdict}: {}, {}, {read}{hashes}",
        count(*frames, "journal record"),
        count(*versions, "version")
    ));
    Ok(())
}

/// Prints a line for each finding.
fn print_damage(findings: &[Damage], out: &mut Out) -> std::io::Result<()> {
    for finding in findings {
        let mut line = out.paint(Role::Bad, finding.kind.name()).into_bytes();
        line.extend_from_slice(format!("  {}", out.text(&finding.on)).as_bytes());
        if let Some(path) = &finding.path {
            line.extend_from_slice(b"  ");
            line.extend_from_slice(&out.name(&path.0));
        }
        if let (Some(first), Some(last)) = (finding.checkpoints.first(), finding.checkpoints.last())
        {
            let which = match finding.checkpoints.len() {
                1 => format!("  in checkpoint {first}"),
                count => format!("  in {count} checkpoints from {first} to {last}"),
            };
            line.extend_from_slice(which.as_bytes());
        }
        line.extend_from_slice(format!(": {}\n", out.text(&finding.detail)).as_bytes());
        out.bytes(&line)?;
    }
    Ok(())
}
