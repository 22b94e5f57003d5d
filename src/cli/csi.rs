//! `ckptfs serve csi`: the CSI driver for Kubernetes.

use std::path::PathBuf;

use super::volumes;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_volumes::csi::{Config, serve};
use ckptfs_volumes::mount_facts;

/// The CSI driver: container volumes for Kubernetes, until a signal ends it; staged volumes stay
/// mounted
///
/// Snapshots are checkpoints, ready at once. Any other verb acts on a volume with --volume NAME,
/// while pods use it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The socket to listen on, unless the service manager passes one
    #[arg(long, value_name = "unix:///PATH", default_value = "unix:///var/lib/kubelet/plugins/csi.ckptfs/csi.sock", value_parser = socket)]
    endpoint: PathBuf,
    /// The name of this node in Kubernetes
    #[arg(long, value_name = "ID", value_parser = node)]
    node_id: String,
    /// The directory of the volumes
    #[arg(long, value_name = "DIR", env = volumes::ROOT_VARIABLE, default_value = volumes::ROOT)]
    root: PathBuf,
    #[command(flatten)]
    pool: volumes::PoolArgs,
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err("a unix socket is needed, such as unix:///run/csi.sock".to_owned())
    }
}

/// Checks a node name by the CSI specification and the rules for Kubernetes labels.
fn node(text: &str) -> Result<String, String> {
    let fits = (1..=63).contains(&text.len());
    let ends = text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric());
    let middle = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if fits && ends && middle {
        Ok(text.to_owned())
    } else {
        Err("1 to 63 letters, digits, - _ and ., a letter or digit at both ends".to_owned())
    }
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let pool = args.pool.open(&args.root)?;
    let config = Config {
        socket: args.endpoint,
        node: args.node_id,
    };
    let (root, out) = (pool.registry().root().to_owned(), &context.out);
    let lacks = mount_facts::lacks(&root);
    serve(pool, &config, || {
        lacks.iter().for_each(|warning| out.warn(warning));
        out.talk(&format!(
            "serving the volumes in {} at unix://{}",
            root.display(),
            config.socket.display()
        ));
    })?;
    Ok(())
}
