//! What plimsoll sees from inside a container: one test for each row of the tables in docs/containers.md. A container
//! is namespaces and a bounding set of capabilities, so the tests make those themselves. All of them need root.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/cgroup.rs"]
mod cgroup;
mod groups;
#[path = "../harness/mod.rs"]
mod harness;
mod kit;
mod manifests;
mod read_only;
mod rights;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;

use kit::{Container, NOBODY, ScriptOutput};

/// Modes of hidepid, as mount(8) takes them. With the second, the directories of others look as if they did not exist.
const MODES: [&str; 3] = ["noaccess", "invisible", "ptraceable"];

#[test]
fn in_a_pid_namespace_of_its_own_it_lists_only_itself_and_says_why() {
    let Some(container) = Container::new("own PID namespace") else { return };
    let list = container.run("exec plimsoll explain");
    assert_eq!(list.code, Some(0), "{}", list.text);
    let rows: Vec<&str> = list.text.lines().filter(|line| line.contains(" MiB ") || line.contains(" KiB ")).collect();
    assert!(rows.is_empty(), "{rows:?}");
    assert!(list.text.contains("only processes of this PID namespace") && list.text.contains("--pid=host"));
    // A PID of the host doesn't exist in here, and the message says where plimsoll looked for it.
    let refused = container.run("exec plimsoll explain 4194305");
    refused.is_one_line(&["no process 4194305 in this PID namespace"]);
    let doctor = container.run("exec plimsoll doctor");
    assert!(doctor.text.contains("only processes of this PID namespace"), "{}", doctor.text);
}

#[test]
fn without_a_proc_it_names_that() {
    let Some(container) = Container::new("no /proc") else { return };
    for verb in ["explain", "doctor"] {
        let printed = container.run(&format!("mount -t tmpfs none /proc; plimsoll {verb}"));
        assert!(printed.text.contains("/proc is not mounted"), "{verb}: {}", printed.text);
        assert!(!printed.text.contains("every process of this machine is visible"), "{}", printed.text);
    }
}

/// No directory of segments can be made, or none of those that exist can be written to.
#[test]
fn over_a_read_only_root_run_names_another_directory() {
    let Some(container) = Container::new("read-only /dev/shm") else { return };
    let run = |shm: &str| {
        container.run(&format!(
            "mkdir -p shm/plimsoll-0; chmod 700 shm/plimsoll-0; mount --bind shm /dev/shm; {shm}
             {} export XDG_CACHE_HOME=$PWD/volume/cache; mount -t tmpfs -o ro none /run
             unset PLIMSOLL_DIR; plimsoll run --report none -- echo ran",
            kit::READ_ONLY
        ))
    };
    for (shm, reason) in [
        ("", "cannot make its segment in /dev/shm/plimsoll-0: "),
        ("mount -t tmpfs -o ro none /dev/shm;", "/dev/shm/plimsoll-0 can't be made: "),
    ] {
        let ScriptOutput { text, .. } = run(shm);
        assert!(text.contains(&format!("'echo' runs untracked: {reason}")) && text.contains("--dir DIR"), "{text}");
        assert!(text.contains("ran\n"), "{text}");
    }
}

#[test]
fn where_proc_hides_a_process_no_verb_claims_that_it_ended() {
    let Some(container) = Container::new("hidepid") else { return };
    for mode in MODES {
        let hide =
            format!("mount -t tmpfs -o mode=1777 none /mnt; mount -t proc -o hidepid={mode} proc /proc; {NOBODY}");
        for verb in ["explain 1", "record 1 -o /mnt/x.jfr", "attach 1", "detach 1", "watch 1"] {
            let refused = container.run(&format!("{hide} plimsoll {verb}"));
            refused.is_one_line(&["no process 1, or /proc hides it (hidepid)", "run plimsoll as root"]);
            assert!(!refused.text.contains("ended"), "{mode} {verb}: {}", refused.text);
        }
        let list = container.run(&format!("{hide} plimsoll explain"));
        assert!(list.text.contains("/proc hides processes of other users (hidepid)"), "{mode}: {}", list.text);
        let doctor = container.run(&format!("{hide} plimsoll doctor"));
        assert!(doctor.text.contains("! processes"), "{mode}: {}", doctor.text);
        // Root sees everything through the same mount.
        let root = container.run(&format!("mount -t proc -o hidepid={mode} proc /proc; exec plimsoll explain 1"));
        assert!(root.code == Some(0) && root.text.contains("= RSS"), "{mode}: {}", root.text);
    }
}

#[test]
fn the_group_of_the_mount_sees_hidden_processes() {
    let Some(container) = Container::new("gid of hidepid") else { return };
    let mount = "mount -t proc -o hidepid=invisible,gid=4242 proc /proc";
    let outside = container.run(&format!("{mount}; {NOBODY} plimsoll explain 1"));
    outside.is_one_line(&["or as a member of group 4242"]);
    let member = NOBODY.replace("--clear-groups", "--groups=4242");
    let inside = container.run(&format!("{mount}; {member} plimsoll explain 1"));
    // The group sees that the process exists, and its totals; its mappings stay closed.
    assert!(inside.code == Some(0) && inside.text.contains("can't be read"), "{}", inside.text);
    let list = container.run(&format!("{mount}; {member} plimsoll explain"));
    assert!(list.text.contains("       1  ") && !list.text.contains("/proc hides"), "{}", list.text);
}

/// Containers seldom have sudo. The known answer is the search path that the test makes.
#[test]
fn doctor_proposes_sudo_only_where_it_is() {
    let Some(container) = Container::new("sudo") else { return };
    let doctor = |before: &str| {
        let script =
            format!("{before} U=$(command -v setpriv); PATH=$PWD/bin exec $U {} $PWD/plimsoll doctor", &NOBODY[8..]);
        container.run(&script).text
    };
    let without = doctor("mkdir bin;");
    assert!(without.contains("as root: plimsoll") && !without.contains("sudo "), "{without}");
    let with = doctor("cp /bin/true bin/sudo;");
    assert!(with.contains("sudo plimsoll") && !with.contains("as root: "), "{with}");
}
