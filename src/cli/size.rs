//! Parsing and formatting of sizes.

pub use ckptfs_api::display::bytes as human;
use ckptfs_core::engine::settings::{self, Value};

/// Parses a size on the command line, in bytes: "64K", "10G", 1048576.
pub fn parse(text: &str) -> Result<u64, String> {
    let key = settings::find("retention.max-size").ok_or_else(String::new)?;
    match settings::parse_value(key, text)? {
        Value::Number(bytes) => Ok(bytes),
        _ => Err("a size such as 10G is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_read_as_the_configuration_s_are() {
        assert_eq!((parse("64K"), parse("7")), (Ok(64 << 10), Ok(7)));
        assert!(parse("much").is_err());
    }
}
