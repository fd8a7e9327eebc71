// Package rootfs answers "what does a sandbox see as its file system": a root
// that is made once from a few harmless files of this machine, the machine's
// /usr, and over both a writable layer per sandbox.
//
// The runtime in package oci calls it, and package host for its probes. Its
// functions keep no state apart from [UserNamespaces]; callers see to it that
// two of them don't work on the same directory. It needs root and Linux 5.12.
//
// Every sandbox has a range of 65,536 user ids of its own ([Range]). Root in
// the sandbox is the first id of the range on this machine. What the kernel
// counts per user (pipe memory, watched files, keys) is so counted per sandbox,
// and a process that got out would own no file of a neighbour.
package rootfs
