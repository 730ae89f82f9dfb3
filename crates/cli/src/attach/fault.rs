//! Why the tracker isn't loaded into a process.

/// The texts follow "process PID".
pub enum Fault {
    /// The loader refused the file, with its reason. In another directory it may work.
    File(String),
    Final(String),
}

impl Fault {
    pub fn text(&self) -> &str {
        match self {
            Fault::File(text) | Fault::Final(text) => text,
        }
    }
}

/// The text without the line that starts the program under the tracker: one such line at the end of a list suffices.
pub fn without_run(why: &str) -> &str {
    let ends = [". Start it with: ", ". For its mappings and its libraries' blocks, start it with: "];
    ends.iter().find_map(|end| why.split_once(end)).map_or(why, |(why, _)| why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_list_a_fault_names_no_line_that_starts_the_program() {
        assert_eq!(without_run("has a shadow stack. Start it with: plimsoll run -- /srv/shop"), "has a shadow stack");
        let allocator =
            "has its allocator inside. For its mappings and its libraries' blocks, start it with: plimsoll run";
        assert_eq!(without_run(allocator), "has its allocator inside");
        assert_eq!(without_run("is traced by process 12: end that first"), "is traced by process 12: end that first");
    }
}
