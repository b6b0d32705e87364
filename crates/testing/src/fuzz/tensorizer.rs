//! Files of Tensorizer: tensors lie within the file and apart, and what their headers say agrees.

use tload_tensorizer::{FormatError, TensorHeader, index_end, parse};

use super::assert_fit_to_print;

/// Checks `input` as a file.
pub(super) fn check(input: &[u8]) {
    if let Err(error) = read(input) {
        assert_fit_to_print(&error.into_error("file"));
    }
}

fn read(file: &[u8]) -> Result<(), FormatError> {
    let len = file.len() as u64;
    let at = |position: u64| usize::try_from(position).expect("in memory");
    let index = parse(&file[..at(index_end(file, len)?)], len)?;
    let mut end = index.bytes;
    for tensor in &index.tensors {
        assert!(end <= tensor.header.start && tensor.header.end == tensor.range.start);
        assert!(tensor.is_meta() || tensor.range.end - tensor.range.start == tensor.byte_len);
        end = tensor.range.end;
        assert!(end <= len);
        let header = &file[at(tensor.header.start)..at(tensor.header.end)];
        let header = TensorHeader::parse(header, tensor, &index)?;
        assert!(index.is_encrypted || header.encryption.is_none());
        if let Some(boxes) = header.encryption.map(|encryption| encryption.boxes) {
            let ranges = (0..boxes.count()).map(|index| boxes.range(index));
            let covered = ranges.fold(0, |end, own| own.end * u64::from(own.start == end));
            assert_eq!(covered, boxes.byte_len);
        }
    }
    Ok(())
}
