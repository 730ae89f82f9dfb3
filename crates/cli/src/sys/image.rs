//! A program to execute: built with allocations, executed without any.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use plimsoll_process::foreign::Deadline;

use super::files::read_start;
use super::inherited::{restore_closed, restore_ignored};

/// Program, arguments and environment in the form that execve needs; built before fork, because that allocates.
pub struct Image {
    path: CString,
    _strings: Vec<CString>,
    arguments: Vec<*const libc::c_char>,
    /// What execvp(3) runs if the kernel does not know the format: the shell with the file as its script. Not for ELF.
    script: Option<Vec<*const libc::c_char>>,
    environment: Vec<*const libc::c_char>,
}

const SHELL: &std::ffi::CStr = c"/bin/sh";

impl Image {
    pub fn new(
        path: &Path,
        arguments: &[OsString],
        environment: &[(OsString, OsString)],
        deadline: Deadline,
    ) -> io::Result<Image> {
        let c = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let mut strings = Vec::new();
        let mut pointers = |all: Vec<Vec<u8>>| -> io::Result<Vec<*const libc::c_char>> {
            let mut list = Vec::new();
            for bytes in all {
                let string = c(bytes)?;
                // The heap buffer of a CString keeps its address when the CString moves into the list.
                list.push(string.as_ptr());
                strings.push(string);
            }
            list.push(std::ptr::null());
            Ok(list)
        };
        let script = match read_start(path, 4, deadline).as_slice() {
            b"\x7fELF" => None,
            _ => {
                let given = arguments.iter().skip(1).map(|a| a.as_bytes().to_vec());
                let shell = [SHELL.to_bytes().to_vec(), path.as_os_str().as_bytes().to_vec()];
                Some(pointers(shell.into_iter().chain(given).collect())?)
            }
        };
        let arguments = pointers(arguments.iter().map(|a| a.as_bytes().to_vec()).collect())?;
        let pair = |(name, value): &(OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
        let environment = pointers(environment.iter().map(pair).collect())?;
        Ok(Image { path: c(path.as_os_str().as_bytes().to_vec())?, _strings: strings, arguments, script, environment })
    }

    /// Replaces this process; returns only with an error.
    pub fn exec(&self) -> io::Error {
        restore_ignored();
        restore_closed();
        // SAFETY: the path and both lists are NUL-terminated and live as long as `self`.
        unsafe { libc::execve(self.path.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr()) };
        let error = io::Error::last_os_error();
        if let (Some(libc::ENOEXEC), Some(script)) = (error.raw_os_error(), &self.script) {
            // SAFETY: the script's list is NUL-terminated and lives as long as `self`, like the environment.
            unsafe { libc::execve(SHELL.as_ptr(), script.as_ptr(), self.environment.as_ptr()) };
        }
        error
    }
}
