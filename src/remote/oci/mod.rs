//! A checkpoint as an image: `oci://HOST[:PORT]/NAME[:TAG]`.
