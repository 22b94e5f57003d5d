//! Tests of the whole layer.
