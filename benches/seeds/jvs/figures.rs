//! JVS's published figures: Intel Core Ultra 9 285H, tmpfs, Go 1.23.6, 2026-02-23.

/// Nanoseconds, bytes and allocations per operation, by the benchmark's name without `Benchmark`.
const FIGURES: [(&str, f64, i64, i64); 39] = [
    (
        "SnapshotCreation_CopyEngine_Small",
        5_661_982.0,
        2_229_427,
        52_282,
    ),
    (
        "SnapshotCreation_CopyEngine_Medium",
        2_729_661.0,
        842_660,
        19_010,
    ),
    (
        "SnapshotCreation_ReflinkEngine_Small",
        6_883_343.0,
        2_619_164,
        61_163,
    ),
    (
        "SnapshotCreation_ReflinkEngine_Medium",
        2_312_636.0,
        628_079,
        13_744,
    ),
    ("SnapshotCreation_MultiFile", 3_708_592.0, 3_934_073, 9_860),
    (
        "SnapshotCreation_MultiFile_Large",
        28_667_012.0,
        36_981_941,
        46_765,
    ),
    ("DescriptorSerialization", 876.5, 496, 2),
    ("DescriptorDeserialization", 2_087.0, 760, 19),
    ("LoadDescriptor", 4_882.0, 1_624, 19),
    ("VerifySnapshot_ChecksumOnly", 10_606.0, 4_703, 78),
    ("VerifySnapshot_WithPayloadHash", 60_286.0, 40_375, 119),
    ("ComputeDescriptorChecksum", 6_047.0, 4_158, 79),
    ("ListAll_Empty", 1_648.0, 264, 5),
    ("ListAll_Single", 7_705.0, 2_028, 29),
    ("ListAll_Many", 326_660.0, 91_224, 1_169),
    ("Find_ByTag", 32_206.0, 9_626, 144),
    ("Find_ByWorktree", 58_563.0, 18_825, 250),
    ("FindByTag", 8_335.0, 2_076, 33),
    ("Restore_CopyEngine_Small", 7_570_720.0, 3_006_635, 53_857),
    ("Restore_CopyEngine_Medium", 2_480_206.0, 870_531, 15_481),
    (
        "Restore_ReflinkEngine_Small",
        5_535_040.0,
        2_132_300,
        38_126,
    ),
    (
        "Restore_ReflinkEngine_Medium",
        2_841_165.0,
        1_085_857,
        19_338,
    ),
    ("Restore_MultiFile", 2_172_883.0, 508_972, 8_467),
    ("Restore_MultiFile_Large", 13_491_429.0, 1_431_251, 19_545),
    ("RestoreToLatest", 5_416_713.0, 2_200_924, 39_365),
    ("Restore_DetachedState", 6_450_542.0, 2_641_551, 47_298),
    (
        "Restore_IntegrityVerification",
        5_293_811.0,
        2_152_842,
        38_495,
    ),
    ("Restore_SnapshotToSnapshot", 5_474_538.0, 2_238_155, 40_036),
    ("Restore_EmptyWorktree", 6_457_379.0, 2_601_160, 46_557),
    ("GCPlan_Small", 112_264.0, 31_955, 388),
    ("GCPlan_Medium", 684_292.0, 221_844, 2_482),
    ("GCPlan_Large", 7_165_428.0, 2_190_340, 23_220),
    ("GCPlan_WithDeletable", 392_169.0, 131_268, 1_431),
    ("GCRun_DeleteSingle", 8_210_714.0, 3_324_222, 67_652),
    ("GCRun_DeleteMultiple", 59_789_998.0, 24_281_968, 509_037),
    ("GCLineageTraversal", 767_341.0, 221_665, 2_479),
    ("GCWithPins", 477_367.0, 144_954, 1_632),
    ("GCEmptyRepo", 27_127.0, 5_305, 64),
    ("GCWithIntents", 429_359.0, 125_554, 1_350),
];

/// Returns the figures of a benchmark.
pub fn of(name: &str) -> Option<(f64, i64, i64)> {
    FIGURES
        .iter()
        .find(|(known, ..)| *known == name)
        .map(|(_, ns, bytes, calls)| (*ns, *bytes, *calls))
}
