//! Metrics as parsed by Prometheus.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{scratch, skip, stdout_of, tool};

/// Parses the text, and prints the name, type, labels and value of each sample.
const READ: &str = r#"
import json, sys
from prometheus_client.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(open(sys.argv[1]).read()))
assert all(family.documentation and family.type in ("gauge", "counter") for family in families), families
names = [family.name for family in families]
assert len(names) == len(set(names)), names
print(json.dumps([[sample.name, family.type, sample.labels, sample.value] for family in families for sample in family.samples]))
"#;

/// Returns the samples of a text, each as a list of name, type, labels and value; no metric may be
/// repeated. Without a parser, skips the test and returns `None`.
pub fn samples(text: &str) -> Option<Vec<Value>> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/python3");
    if !python.exists() {
        skip("no parser: tests/tools.sh could not install prometheus-client");
        return None;
    }
    let dir = scratch();
    let file = dir.path().join("metrics");
    fs::write(&file, text).expect("a file");
    let mut read = tool(python.to_str().expect("text"), &["-c", READ]);
    let said = stdout_of(read.arg(&file), 60);
    serde_json::from_str(&said).expect("a list")
}
