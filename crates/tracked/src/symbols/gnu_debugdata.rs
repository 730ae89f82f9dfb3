//! Unpacks the symbol table in a `.gnu_debugdata` section, within a limit of memory.
//!
//! ```text
//! stream header │ block: size, flags, … │ chunk: status, size −1 (2), packed size −1 (2), … │ chunk │ … │ 0 │ … │ index
//! ```
//! (xz-file-format.txt 1.1.0; the chunks of LZMA2 are described in liblzma, lzma2_decoder.c.) lzma-rs keeps a whole
//! block in memory, twice, before it writes any of it. So the reader counts the bytes that the chunks state; no chunk
//! unpacks to more. It counts what the decoder reads, and doesn't walk through the chunks itself: the decoder doesn't
//! check that a chunk takes as many packed bytes as it states, so it may find chunks where a walk finds none.

use std::io::{self, BufRead, Read};

/// The unpacked file, if it has at most `limit` bytes.
pub(super) fn xz(packed: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    lzma_rs::xz_decompress(&mut Chunks::new(packed, limit), &mut out).ok()?;
    Some(out)
}

/// The packed bytes, until the chunks state more than `limit` bytes.
///
/// The decoder reads numbers of one, two, four and eight bytes, each in one call. Only the sizes of a chunk are a read
/// of two bytes after a read of one byte. The header of a block is 3, 7, 11 … bytes that follow a single one, its size.
struct Chunks<'a> {
    left: &'a [u8],
    /// Length of the last read, and its last byte.
    last: (usize, u8),
    /// Bytes that the chunks so far unpack to.
    stated: usize,
    limit: usize,
}

impl Chunks<'_> {
    fn new(packed: &[u8], limit: usize) -> Chunks<'_> {
        Chunks { left: packed, last: (0, 0), stated: 0, limit }
    }
}

impl Read for Chunks<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.left.read(buffer)?;
        let (before, status) = self.last;
        match &buffer[..length] {
            [high, low] if before == 1 => {
                // Bits 0 to 4 of an LZMA chunk's status belong to the size. In the status of an unpacked chunk (1 or 2)
                // they don't.
                let more = if status & 0x80 != 0 { usize::from(status & 0x1f) << 16 } else { 0 };
                self.stated += more + usize::from(u16::from_be_bytes([*high, *low])) + 1;
                if self.stated > self.limit {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
            }
            // Two filters: the decoder would apply LZMA2 twice, the second time to bytes that this reader doesn't see.
            [flags, ..] if before == 1 && length % 4 == 3 && flags & 3 != 0 => {
                return Err(io::ErrorKind::Unsupported.into());
            }
            _ => {}
        }
        if let Some(last) = buffer[..length].last() {
            self.last = (length, *last);
        }
        Ok(length)
    }
}

impl BufRead for Chunks<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.left)
    }

    fn consume(&mut self, bytes: usize) {
        self.left = self.left.get(bytes..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::random::Random;

    /// The output of xz(1).
    fn packed(bytes: &[u8], options: &[&str]) -> Vec<u8> {
        let mut xz = Command::new("xz");
        let mut xz = xz.arg("-c").args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("xz");
        let (mut input, bytes) = (xz.stdin.take().expect("a pipe"), bytes.to_vec());
        let writer = std::thread::spawn(move || input.write_all(&bytes));
        let output = xz.wait_with_output().expect("its output");
        writer.join().expect("ended").expect("written");
        assert!(output.status.success());
        output.stdout
    }

    /// Runs, text of few words, and noise, which xz doesn't pack: all kinds of chunks.
    fn mixed() -> Vec<u8> {
        let mut random = Random(5);
        let mut bytes = vec![7; 100_000];
        bytes.extend((0..30_000).flat_map(|_| [b"free ", b"block", b"stack", b"chunk"][random.index(4)]));
        bytes.extend((0..200_000).map(|_| random.below(256) as u8));
        bytes.extend([1u8; 3]);
        bytes
    }

    /// Where the packed size of the first chunk is.
    fn packed_size_at(file: &[u8]) -> usize {
        let chunk = 12 + (usize::from(file[12]) + 1) * 4;
        assert!(file[chunk] >= 0xe0, "an LZMA chunk that resets everything: {:#x}", file[chunk]);
        chunk + 3
    }

    #[test]
    fn what_the_chunks_state_is_what_they_unpack_to() {
        let bytes = mixed();
        for options in [&["-6"][..], &["-0", "--check=crc32"], &["-9", "--check=none"], &["--block-size=70000"]] {
            let file = packed(&bytes, options);
            let (mut chunks, mut out) = (Chunks::new(&file, bytes.len()), Vec::<u8>::new());
            lzma_rs::xz_decompress(&mut chunks, &mut out).expect("unpacked");
            assert!(out == bytes, "{options:?}");
            assert_eq!(chunks.stated, bytes.len(), "{options:?}");
            assert_eq!(xz(&file, bytes.len() - 1), None, "{options:?}");
        }
    }

    #[test]
    fn a_file_that_unpacks_to_more_than_the_limit_is_refused_before_it_is_unpacked() {
        const LIMIT: usize = 3 << 20;
        let file = packed(&vec![0; 16 << 20], &["-6"]);
        let mut hidden = file.clone();
        // The first chunk states that it takes 64 KiB of packed bytes: all other chunks.
        let at = packed_size_at(&file);
        hidden[at..at + 2].fill(0xff);
        for file in [file, hidden] {
            let (mut chunks, mut out) = (Chunks::new(&file, LIMIT), Vec::<u8>::new());
            assert!(lzma_rs::xz_decompress(&mut chunks, &mut out).is_err());
            assert!(out.is_empty());
            assert!((LIMIT + 1..LIMIT + (2 << 20) + 1).contains(&chunks.stated), "{}", chunks.stated);
            assert!(chunks.left.len() > file.len() / 2, "{} of {} bytes are left", chunks.left.len(), file.len());
        }
    }

    #[test]
    fn a_chunk_that_states_too_many_packed_bytes_is_counted_as_it_is_decoded() {
        let bytes = vec![0; 5 << 20];
        let mut file = packed(&bytes, &["-6"]);
        let at = packed_size_at(&file);
        file[at..at + 2].fill(0xff);
        let (mut chunks, mut out) = (Chunks::new(&file, bytes.len()), Vec::<u8>::new());
        lzma_rs::xz_decompress(&mut chunks, &mut out).expect("the decoder doesn't check it");
        assert_eq!((out.len(), chunks.stated), (bytes.len(), bytes.len()));
    }

    #[test]
    fn a_block_with_two_filters_is_refused() {
        let mut file = packed(b"text", &["-6"]);
        file[13] |= 1;
        let mut chunks = Chunks::new(&file, 1 << 20);
        match lzma_rs::xz_decompress(&mut chunks, &mut Vec::<u8>::new()).expect_err("refused") {
            lzma_rs::error::Error::IoError(why) => assert_eq!(why.kind(), io::ErrorKind::Unsupported),
            why => panic!("{why}"),
        }
    }
}
