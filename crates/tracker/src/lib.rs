#![no_std]

pub mod stack;
