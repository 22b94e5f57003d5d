//! PostgreSQL under load: from a checkpoint taken while it writes it recovers every acknowledged
//! transaction.

use crate::common::has;
use crate::common::random::is_long;
use crate::engine::on_an_engine;
use crate::engine::rig::Rig;

/// Scale factor of pgbench, whose totals disagree if a checkpoint has half a transaction.
const SCALE: u32 = 2;

fn every_checkpoint_under_load_is_a_database() {
    if !has("pg_createcluster") {
        return crate::engine::skip("PostgreSQL is not installed (make deps; apt: postgresql)");
    }
    let checkpoints = if is_long() { 10 } else { 2 };
    let rig = Rig::with_driver();
    rig.sh(&format!(
        "pg_image; docker volume create -d ckptfs pgdata; pg_start db pgdata; pg_fill db {SCALE}"
    ));
    rig.sh(
        "docker exec -d db pgbench -U postgres -n -c 4 -T 600 postgres; until_true 60 pg_more db 0",
    );
    let mut acknowledged = Vec::new();
    for checkpoint in 1..=checkpoints {
        let before: u64 = rig.sh("pg_count db").trim().parse().expect("a count");
        assert_eq!(
            rig.sh("ckptfs checkpoint --volume pgdata").trim(),
            checkpoint.to_string()
        );
        let after: u64 = rig.sh("pg_count db").trim().parse().expect("a count");
        rig.sh(&format!("until_true 60 pg_more db {after}"));
        acknowledged.push((before, after));
    }
    // Each checkpoint becomes a volume while the first volume stays in use.
    for (index, (before, after)) in acknowledged.iter().enumerate() {
        let id = index + 1;
        rig.sh(&format!("docker volume create -d ckptfs -o from=pgdata -o checkpoint={id} fork{id}; pg_start test{id} fork{id}"));
        let found: u64 = rig
            .sh(&format!("pg_check test{id}"))
            .trim()
            .parse()
            .expect("a count");
        assert!(
            (*before..=*after).contains(&found),
            "checkpoint {id} has {found} transactions, between {before} and {after}"
        );
        rig.sh(&format!("docker stop -t 20 test{id}"));
    }
    // The check detects an inconsistency.
    rig.sh("docker start test1; pg_ready test1; pg test1 'update pgbench_accounts set abalance = abalance + 1 where aid = 1'");
    assert!(rig.fails("pg_check test1").contains("do not agree"));
    // The volume under load is consistent, both directly and after a restore under a stopped
    // server.
    rig.sh("docker stop -t 20 db; docker start db; pg_ready db; pg_check db; docker stop -t 20 db; ckptfs restore --volume pgdata 1; docker start db; pg_ready db");
    let (before, after) = acknowledged[0];
    let found: u64 = rig.sh("pg_check db").trim().parse().expect("a count");
    assert!(
        (before..=after).contains(&found),
        "{found} transactions, between {before} and {after}"
    );
}

on_an_engine! { every_checkpoint_under_load_is_a_database }
