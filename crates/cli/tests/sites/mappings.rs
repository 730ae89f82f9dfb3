//! What a mapping holds: its resident pages, while the process lives.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{PLIMSOLL, number, read_report};
use crate::stage::{must, repository};
use crate::{Tracked, adds_up, fixture, functions, is_leaf, report_of, scratch, stack_with};

/// Only a scan of the page map (Linux 6.7) passes over empty reservations quickly, so older kernels' reports lack such
/// pages.
#[test]
fn pages_stay_resident_when_they_become_inaccessible() {
    let program = scratch("protected-build").join("protected");
    must(Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&program).arg(fixture("protected.c")));
    let (tracked, _) = Tracked::start("protected", &["--sites", "exact"], &mut Command::new(&program));
    let report = tracked.json();
    adds_up(&report);
    let map = stack_with(&report, "map_pages");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let version: Vec<u32> = release.split(['.', '-']).take(2).filter_map(|word| word.trim().parse().ok()).collect();
    let resident = if version >= vec![6, 7] { 16 << 20 } else { 12 << 20 };
    assert_eq!((number(map, "committed_bytes"), number(map, "resident_bytes")), (12 << 20, resident));
    assert_eq!(number(map, "held_bytes"), resident);
    tracked.end();
}

/// The kernel can write the pages of a mapped file to it, and drop them. Shared memory has no such file, whether it can
/// be written at these addresses or not, and copies in a private mapping aren't the file's pages.
#[test]
fn what_the_kernel_can_drop_counts_as_a_mapped_file_and_nothing_else() {
    let folder = scratch("shared-files-build");
    let (program, file) = (folder.join("shared_files"), folder.join("mapped"));
    must(
        Command::new("gcc")
            .args(["-O1", "-g", "-fno-optimize-sibling-calls", "-o"])
            .arg(&program)
            .arg(fixture("shared_files.c")),
    );
    let (tracked, _) = Tracked::start("shared-files", &["--sites", "exact"], Command::new(&program).arg(&file));
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(&file).output().expect("stat");
    if String::from_utf8_lossy(&kind.stdout).trim() == "tmpfs" {
        println!("what_the_kernel_can_drop_counts_as_a_mapped_file_and_nothing_else: skipped, the file is on tmpfs");
        return drop(tracked.end());
    }
    let report = tracked.json();
    adds_up(&report);
    let sites = report["sites"].as_array().expect("sites");
    let of = |name: &str| {
        let its: Vec<&Value> = sites.iter().filter(|site| functions(site).iter().any(|f| f == name)).collect();
        let sum = |key: &str| its.iter().map(|site| site[key].as_u64().unwrap_or(0)).sum::<u64>() >> 20;
        ["committed_bytes", "mapped_file_bytes", "resident_bytes", "held_bytes"].map(sum)
    };
    assert_eq!((of("map_file"), of("map_memory")), ([8, 8, 8, 0], [6, 0, 6, 6]));
    assert_eq!((of("map_copies"), of("map_view")), ([8, 5, 8, 3], [5, 0, 5, 5]));
    let program = report["categories"].as_array().expect("categories").iter().find(|c| c["name"] == "shared_files");
    let program = program.expect("the program's own");
    assert_eq!((&program["resident_bytes"], &program["resident_file_bytes"]), (&(27 << 20).into(), &(13 << 20).into()));
    let text = tracked.report(&[]);
    assert!(text.contains("are mapped files: shared_files 13.0 MiB"), "{text}");
    tracked.end();
}

/// Thousands of mappings are read by a scan. A kernel without it leaves their residency unknown: then neither a total
/// nor a sum of what the books lack would be right.
#[test]
fn memory_in_thousands_of_mappings_is_in_the_books() {
    let program = scratch("many-mappings-build").join("many_mappings");
    must(Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(fixture("many_mappings.c")));
    let (tracked, _) = Tracked::start("many-mappings", &[], &mut Command::new(&program));
    let report = tracked.json();
    let text = tracked.report(&[]);
    let category = report["categories"].as_array().expect("categories").iter().find(|c| c["name"] == "many_mappings");
    let resident = &category.expect("the program's own")["resident_bytes"];
    let total = text.lines().find(|line| line.starts_with("total ")).expect("a total");
    match report["gaps"].as_array().expect("gaps").iter().find(|gap| gap["source"] == "pagemap") {
        None => {
            assert_eq!(resident.as_u64(), Some(5000 * 4096), "{text}");
            assert!(total.ends_with("MiB"), "{text}");
        }
        Some(gap) => {
            println!("memory_in_thousands_of_mappings_is_in_the_books: without a scan, {gap}");
            assert!(gap["reason"].as_str().is_some_and(|why| why.starts_with("more than 4096 mappings")), "{gap}");
            assert!(resident.is_null() && total.trim_end().ends_with("iB"), "{text}");
        }
    }
    assert!(!text.contains("not in these books"), "{text}");
    tracked.end();
}

/// The program maps 200 MiB and touches one page of it, beside 20 MiB of blocks; then 300 MiB more beside 10 MiB more.
/// Committed bytes would put the mapping on top.
#[test]
fn a_mapping_that_nobody_touched_stands_below_blocks() {
    let program = scratch("untouched-build").join("untouched");
    must(
        Command::new("gcc")
            .args(["-O1", "-g", "-fno-optimize-sibling-calls", "-o"])
            .arg(&program)
            .arg(fixture("untouched.c")),
    );
    let (mut tracked, _) = Tracked::start("untouched", &["--sites", "exact"], &mut Command::new(&program));
    let before = tracked.folder.join("before.json");
    fs::write(&before, tracked.report(&["--by", "site", "--format", "json"])).expect("written");
    let report = tracked.json();
    adds_up(&report);
    let first = report["sites"][0].as_object().expect("a site");
    assert!(is_leaf(&report["sites"][0], "take_blocks"), "{first:?}");
    let (map, blocks) = (stack_with(&report, "map_much"), stack_with(&report, "take_blocks"));
    assert_eq!(
        (number(map, "committed_bytes"), number(map, "resident_bytes"), number(map, "held_bytes")),
        (200 << 20, 4096, 4096)
    );
    assert_eq!(number(blocks, "held_bytes"), number(blocks, "live_bytes"));
    let first =
        |text: &str| text.lines().find_map(|line| ["take_blocks", "map_much"].into_iter().find(|f| line.contains(f)));
    let resident = tracked.report(&["--by", "site", "--measure", "resident"]);
    assert!(resident.contains("sites by resident bytes"), "{resident}");
    let text = tracked.report(&["--by", "site"]);
    assert_eq!(first(&text), Some("take_blocks"), "{text}");
    assert!(!text.contains("not known"), "{text}");
    let legend = "`held`: live blocks, and resident mappings without files; `share`: of all `held`; ";
    assert!(text.contains(legend), "{text}");

    tracked.resume();
    tracked.until_ready();
    let diff = |after: &Path, arguments: &[&str]| {
        let output = Command::new(PLIMSOLL).arg("diff").arg(&before).arg(after).args(arguments).output().expect("diff");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let pid = PathBuf::from(tracked.child.id().to_string());
    let sites = read_report(&diff(&pid, &["--by", "site", "--format", "json"]));
    let changed = sites["sites"].as_array().expect("sites");
    assert!(is_leaf(&changed[0], "take_blocks") && sites["measure"] == "held", "{sites:#}");
    let of_map = changed.iter().find(|site| is_leaf(site, "map_much"));
    assert!(of_map.is_some_and(|site| site["change"] == 4096), "{of_map:?}");
    let of_blocks = changed[0]["change"].as_i64().expect("bytes");
    assert!((10 << 20..(10 << 20) + (64 << 10)).contains(&of_blocks), "{of_blocks}");
    let by_caller = diff(&pid, &["--by", "caller"]);
    assert_eq!(first(&by_caller), Some("take_blocks"), "{by_caller}");
    assert!(by_caller.contains(" resident "), "{by_caller}");

    // The process has ended: what was resident is not known.
    let folder = tracked.folder.clone();
    tracked.child.kill().expect("it runs");
    tracked.child.wait().expect("it ends");
    let dead = read_report(&report_of(&folder, &["--by", "site", "--format", "json"]));
    adds_up(&dead);
    assert!(is_leaf(&dead["sites"][0], "take_blocks"), "{}", dead["sites"][0]);
    let mapped: Vec<&Value> =
        dead["sites"].as_array().expect("sites").iter().filter(|s| is_leaf(s, "map_much")).collect();
    let committed: Vec<u64> = mapped.iter().map(|site| number(site, "committed_bytes") >> 20).collect();
    assert_eq!(committed.iter().sum::<u64>(), 500, "{committed:?}");
    assert!(mapped.iter().all(|site| site["held_bytes"].is_null() && site["resident_bytes"].is_null()), "{mapped:?}");
    let callers = report_of(&folder, &["--by", "caller"]);
    assert!(callers.contains("   mapped: 300 MiB committed of 300 MiB reserved\n"), "{callers}");
    let text = report_of(&folder, &["--by", "site"]);
    assert_eq!(first(&text), Some("take_blocks"), "{text}");
    assert!(text.contains("was resident is not known: the process has ended."), "{text}");
    let of_map = text.lines().find(|line| line.contains(" 500 MiB ")).expect("one line for both calls");
    assert!(of_map.contains("   - ") && !of_map.contains('%'), "{text}");
    for measure in ["held", "resident"] {
        let mut refused = Command::new(PLIMSOLL);
        refused.arg("report").arg(&folder).args(["--by", "site", "--measure", measure]);
        let output = refused.output().expect("plimsoll");
        let words = format!("plimsoll: --measure {measure} is not known of a process that has ended: use --measure ");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && output.stdout.is_empty() && error.starts_with(&words), "{error}");
    }
    let text = diff(&folder, &["--by", "site"]);
    assert!(text.contains("\nlive: 20") && text.contains("+10.0 MiB\n"), "{text}");
    assert!(
        text.contains("+300 MiB\n") && text.contains("a process has ended. To list them: --measure committed"),
        "{text}"
    );
    let by_caller = diff(&folder, &["--by", "caller"]);
    assert_eq!(first(&by_caller), Some("take_blocks"), "{by_caller}");
}

/// The tracker notices an unloaded library only when another object lies at its address. Here a block of the program
/// does.
#[test]
fn an_unloaded_library_is_no_longer_a_loaded_library() {
    const LOAD: &str = "import _ctypes, ctypes, sys
for round in range(3):
  library = ctypes.CDLL(sys.argv[1])
  library.plugin_take.restype = ctypes.c_void_p
  library.plugin_take(2 << 20)
  _ctypes.dlclose(library._handle)
maps = open('/proc/self/maps').read()
print('still mapped' if 'libplugin' in maps else 'gone')
print('ready', flush=True)
sys.stdin.readline()";
    let library = scratch("unloaded-build").join("libplugin.so");
    let source = repository().join("fixtures/c/libplugin.c");
    must(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source));
    let mut program = Command::new("/usr/bin/python3");
    let (tracked, printed) =
        Tracked::start("unloaded", &["--sites", "exact"], program.args(["-c", LOAD]).arg(&library));
    assert_eq!(printed, ["gone"]);
    let report = tracked.json();
    let modules = report["modules"].as_array().expect("modules");
    let is_loaded = |module: &Value| module["loaded"].as_bool().expect("whether it is loaded");
    let of_plugin = |module: &&Value| module["path"].as_str().is_some_and(|path| path.ends_with("libplugin.so"));
    let states: Vec<bool> = modules.iter().filter(of_plugin).map(is_loaded).collect();
    assert!(!states.is_empty() && states.iter().all(|loaded| !loaded), "{modules:?}");
    let length = |module: &Value| number(module, "end") - number(module, "start");
    let loaded: u64 = modules.iter().filter(|module| is_loaded(module)).map(length).sum();
    let categories = report["categories"].as_array().expect("categories");
    let libraries = categories.iter().find(|of| of["name"] == "Loaded Libraries").expect("a category");
    assert_eq!(number(libraries, "committed_bytes"), loaded, "{libraries}");
    adds_up(&report);
    tracked.end();
}

/// The page map of a large, nearly empty mapping is read by a scan, whose cost depends on the resident pages only.
#[test]
fn what_is_resident_of_five_gib_is_known() {
    const MAP: &str = "import mmap, sys
p = mmap.mmap(-1, 5 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
p.madvise(mmap.MADV_NOHUGEPAGE)
for at in (0, 3 << 30, (5 << 30) - 4096): p[at] = 1
print('ready', flush=True)
sys.stdin.readline()";
    let (tracked, _) = Tracked::start("five-gib", &[], Command::new("/usr/bin/python3").args(["-c", MAP]));
    let report = tracked.json();
    let is_map = |site: &&Value| number(site, "committed_bytes") >= 5 << 30;
    let sites = report["sites"].as_array().expect("sites");
    let map = sites.iter().find(is_map).unwrap_or_else(|| panic!("{sites:?}"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let version: Vec<u32> = release.split('.').take(2).filter_map(|part| part.trim().parse().ok()).collect();
    if version < vec![6, 7] {
        assert!(
            map["resident_bytes"].is_null() && report["gaps"].to_string().contains("more than 4.00 GiB"),
            "{report}"
        );
        return;
    }
    assert_eq!(number(map, "resident_bytes"), 3 * 4096, "{map}\n{}", report["gaps"]);
    tracked.end();
}
