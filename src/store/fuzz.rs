//! Properties of names and texts in a store.

use proptest::collection::vec;
use proptest::prelude::*;

use super::ids::{ObjectId, ObjectOrigin, Slot};
use super::{layers, layout};
use ckptfs_api::Epoch;
use ckptfs_testkit::{config, spelled};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn names_of_objects_come_back(epoch in any::<u64>(), slot in any::<u64>(), serial in any::<u32>(), moved in any::<bool>()) {
        let origin = if moved { ObjectOrigin::Moved } else { ObjectOrigin::Cloned };
        let id = ObjectId { epoch: Epoch(epoch), slot: Slot(slot), serial, origin };
        prop_assert_eq!(layers::parse_name(Epoch(epoch), layers::file_name(id).as_bytes()), Some(id));
    }

    #[test]
    fn any_bytes_are_the_name_of_one_object_or_of_none(name in prop_oneof![vec(any::<u8>(), 0..40), spelled(b"0123456789-.cm+", 30)]) {
        if let Some(id) = layers::parse_name(Epoch(1), &name) {
            prop_assert_eq!(layers::file_name(id).into_bytes(), name);
        }
    }

    #[test]
    fn any_bytes_are_a_format_or_an_error(bytes in vec(any::<u8>(), 0..200), digits in spelled(b"0123456789abcdef- \n", 60), at in 0..90_usize) {
        let _ = layout::parse_format(&bytes);
        let mut text = b"ckptfs store\nversion 1\nfeatures -\nid 00112233445566778899aabbccddeeff\n".to_vec();
        prop_assert!(layout::parse_format(&text).is_ok());
        text.splice(at.min(text.len()).., digits);
        let _ = layout::parse_format(&text);
    }
}
