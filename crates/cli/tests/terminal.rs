//! What commands print into terminals of 60, 80 and 120 columns: no line is longer, no word is cut. Needs no
//! privileges.

use longfat_analyze::capture::{LinkType, write::PcapWriter};
use std::{
    collections::BTreeSet,
    fs::File,
    path::Path,
    process::{Command, Stdio},
};

const WIDTHS: [usize; 3] = [60, 80, 120];
/// What a host's state of the moment makes commands say: it may be otherwise the next time.
const OF_THE_MOMENT: &str =
    "fine runs will most likely be invalid it is busy; wait, or expect is idle enough µs ms s";
const LONGFAT: &str = env!("CARGO_BIN_EXE_longfat");

/// What a command prints into a terminal of so many columns, or into a pipe.
fn printed(arguments: &str, columns: Option<usize>) -> String {
    let command = format!("{LONGFAT} {arguments} 2>&1");
    let mut shell = match columns {
        // A pseudo-terminal, made by util-linux.
        Some(columns) => {
            let mut script = Command::new("script");
            script.args(["-qec", &format!("stty cols {columns} rows 50; {command}"), "/dev/null"]);
            script
        }
        None => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &command]);
            shell
        }
    };
    let output = shell.env_remove("COLUMNS").env("TERM", "dumb").stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

/// Words of a text, without what tables are drawn of.
fn words(text: &str) -> BTreeSet<&str> {
    let is_drawn = |word: &&str| word.chars().any(char::is_alphanumeric);
    text.split_whitespace().filter(is_drawn).collect()
}

/// No line is longer than the terminal but those that `may_be_long`: commands, to be pasted. Every word was in what is
/// printed into a pipe, where nothing is broken: none is half of one.
fn fits(arguments: &str, may_be_long: impl Fn(&str) -> bool) {
    let whole = printed(arguments, None);
    assert!(whole.lines().count() > 2, "{arguments}: {whole}");
    let known: BTreeSet<&str> = words(&whole).union(&words(OF_THE_MOMENT)).copied().collect();
    for columns in WIDTHS {
        let shown = printed(arguments, Some(columns));
        let long = shown.lines().find(|line| line.chars().count() > columns && !may_be_long(line));
        assert_eq!(long, None, "{arguments} at {columns} columns\n{shown}");
        // Figures change from one time to the next.
        let is_word = |word: &&&str| word.chars().all(|c| c.is_alphabetic() || "-_'()".contains(c));
        let named = shown.split("no room for: ").skip(1).collect::<String>();
        let cut = words(&shown);
        let cut = cut.difference(&known).filter(is_word).find(|word| {
            let heading = word.trim_end_matches(';');
            !named.contains(*word) && !["no", "room", "for"].contains(word) && !known.contains(heading)
        });
        assert_eq!(cut, None, "{arguments} at {columns} columns\n{shown}");
    }
}

fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    ["sysctl ", "longfat ", "Check:"].iter().any(|begin| line.starts_with(begin))
}

/// One transfer, of which a segment is sent twice.
fn capture(path: &Path) {
    let mut writer = PcapWriter::new(File::create(path).unwrap(), LinkType(101), 96).unwrap();
    let mut at = 1_700_000_000_000_000_000;
    for n in (0..200_u32).chain([199]) {
        at += 1_000_000;
        let mut packet = vec![0x45, 0, 0x04, 0x10, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0x9c, 0x40, 0, 80]);
        packet.extend((n * 1000).to_be_bytes());
        packet.extend([0, 0, 0, 0, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
        writer.packet(at, 1040, &packet).unwrap();
    }
}

#[test]
fn tables_and_prose_fit_terminals_of_60_80_and_120_columns() {
    let nothing_is = |_: &str| false;
    fits("lab metrics", nothing_is);
    fits("cc list", nothing_is);
    fits("path --rate 1Gbit --rtt 28ms", is_command);
    fits("path --rate 10Gbit --rtt 90ms --flows 8 --loss 1e-6", is_command);
    fits("doctor", nothing_is);
    fits("why --list", nothing_is);
}

#[test]
fn an_experiment_and_an_analysis_fit_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let experiment = root.join("experiments/cc-beside-kernel.toml");
    fits(&format!("lab check {}", experiment.display()), |line| is_command(line) || line.contains(".toml"));
    let directory = tempfile::tempdir().unwrap();
    let capture_file = directory.path().join("a.pcap");
    capture(&capture_file);
    fits(&format!("analyze {}", capture_file.display()), |line| line.contains(".pcap"));
}

#[test]
fn what_a_relays_file_comes_to_fits_too() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("relay.toml");
    std::fs::write(
        &file,
        "metrics = '127.0.0.1:9469'\n[[listen]]\naddress = '127.0.0.1:5300'\nto = '127.0.0.1:5201'\n\
         [[rule]]\nname = 'all'\nmemory = '16MiB'\nqueue = { target = '20ms' }\n",
    )
    .unwrap();
    fits(&format!("relay check {}", file.display()), |_| false);
}

#[test]
fn a_disk_that_is_full_is_said_whatever_else_there_is_to_say() {
    for arguments in ["doctor", "lab metrics", "path --rate 1Gbit --rtt 28ms"] {
        let full = File::create("/dev/full").unwrap();
        let words = arguments.split(' ');
        let told = Command::new(LONGFAT).args(words).stdout(full).output().unwrap();
        let said = String::from_utf8(told.stderr).unwrap();
        assert!(said.contains("write to standard output: No space left on device"), "{arguments}: {said}");
        assert!(!told.status.success(), "{arguments}");
    }
}
