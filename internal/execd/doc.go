// Package execd is the daemon inside a sandbox: it runs commands, keeps
// long-lived processes, mounts the file handler, and is PID 1. cmd/execd calls
// [Main]; tests use [New].
//
// It serves HTTP/1.1 with a token. Commands and processes speak two protocols
// over the same core: ours (package wire), whose output is exact, and the older
// one of other clients (events of lines; unnumbered terminal frames), where
// package wire's isn't asked for. Refusals are wire.Error bodies.
//
// It keeps nothing on disk that has a name. Its limits: 1024 connections, 512
// commands, 256 processes, request bodies of 8 MiB, headers of 64 KiB, a header
// read time of 10 s; of the older protocol 1024 records of ended commands for
// 24 hours and 64 MiB of output of each command in the background.
//
// A Server is safe for concurrent use.
package execd
