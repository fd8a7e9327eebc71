// Package script is the closed set of shell lines that the conformance clauses
// run in a sandbox: a line is a few steps, each a named template with its
// arguments quoted.
//
// Clauses make steps with the functions of this package and render them with
// [Line]. [Parse] recognises exactly what Line renders, so that a sandbox
// without a shell (package sandboxfake) can do what the steps say and answer
// 127 to everything else. What each template does is in its [Template.Doc], and
// a test of this package holds a real /bin/sh to it.
//
// Arguments are byte strings without NUL. The lines need a POSIX sh and the
// programs cat, env, grep, head, id, kill, ln, ls, mkdir, mkfifo, printenv, rm,
// seq, setsid, sleep, stat, stty, wc and yes, as coreutils, util-linux and
// BusyBox have them. All functions are pure and safe for concurrent use.
package script
