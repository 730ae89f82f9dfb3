//! `gHotSpotVMStructs`, the table of a VM's own fields: type, field, offset or address.

pub(super) struct Row {
    pub of: String,
    pub name: String,
    pub offset: u64,
    pub address: u64,
}

/// All rows, in the order of the table.
pub struct FieldTable(pub(super) Vec<Row>);

impl FieldTable {
    fn row(&self, of: &str, name: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.of == of && row.name == name)
    }

    /// Address of a static field.
    pub fn address(&self, of: &str, name: &str) -> Option<u64> {
        self.row(of, name).map(|row| row.address)
    }

    /// Offset of another field within its type.
    pub fn offset(&self, of: &str, name: &str) -> Option<u64> {
        self.row(of, name).map(|row| row.offset)
    }
}
