//! Reads the options that a VM was started with, as far as its command line and variables show them. VM.flags has the
//! values in force, which the VM and jcmd may have chosen, too. An option in a file (`@FILE`, -XX:VMOptionsFile) isn't
//! here.

use super::case::Case;
use plimsoll_facts::units::Bytes;

impl<'c> Case<'c> {
    /// In the order in which the VM reads them. Of several that set the same flag, the last one counts.
    pub(crate) fn vm_options(self) -> impl DoubleEndedIterator<Item = &'c str> {
        let variables =
            ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"].into_iter().filter_map(move |name| self.variable(name));
        let command = self.snapshot.process.command.iter().map(String::as_str);
        variables.flat_map(str::split_whitespace).chain(command)
    }

    /// The size in the last -XX:NAME=SIZE.
    pub(crate) fn size_option(self, name: &str) -> Option<Bytes> {
        let given = |option: &'c str| option.strip_prefix("-XX:")?.strip_prefix(name)?.strip_prefix('=');
        size(self.vm_options().rev().find_map(given)?)
    }
}

/// `512m`, `6G`, `1073741824`: HotSpot takes one letter behind the number.
fn size(text: &str) -> Option<Bytes> {
    let shift = match *text.as_bytes().last()? {
        b'k' | b'K' => 10,
        b'm' | b'M' => 20,
        b'g' | b'G' => 30,
        b't' | b'T' => 40,
        _ => 0,
    };
    let number = if shift > 0 { &text[..text.len() - 1] } else { text };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use plimsoll_facts::snapshot::Snapshot;

    #[test]
    fn sizes_have_one_letter() {
        for (text, bytes) in [("7", 7), ("2k", 2048), ("512m", 512 << 20), ("6G", 6 << 30), ("1T", 1 << 40)] {
            assert_eq!(size(text), Some(Bytes(bytes)), "{text}");
        }
        for text in ["", "m", "1mm", "-1", "1é", "99999999999999999999", "99999999T"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn the_command_line_comes_after_the_variables() {
        let mut snapshot = Snapshot::default();
        let soft = |snapshot: &Snapshot| {
            let ledger = Ledger::of(snapshot);
            Case { snapshot, ledger: &ledger }.size_option("SoftMaxHeapSize")
        };
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        snapshot.process.environment = vec![
            variable("JDK_JAVA_OPTIONS", "-Xss1m -XX:SoftMaxHeapSize=2m"),
            variable("JAVA_TOOL_OPTIONS", "-XX:SoftMaxHeapSize=1m"),
        ];
        assert_eq!(soft(&snapshot), Some(Bytes::mib(2)));
        let command = ["java", "-XX:SoftMaxHeapSize=4m", "-XX:SoftMaxHeapSize=3m", "-XX:SoftMaxHeapSizes=5m", "Shop"];
        snapshot.process.command = command.map(String::from).to_vec();
        assert_eq!(soft(&snapshot), Some(Bytes::mib(3)));
    }
}
