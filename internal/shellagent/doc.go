// Package shellagent is the built-in Agent program: it runs what a person types,
// and has no model behind it. cmd/shellagent is a thin main around it.
//
// It speaks the Agent Client Protocol, version 1, on stdin and stdout
// (session/new, load, resume, prompt, cancel). A prompt is one shell command,
// run by bash (sh where bash is missing) in a process group of its own, with an
// empty stdin. The command is shown as one tool call whose output streams in;
// there is no text of an assistant, since nobody is there who could write it.
//
// The working directory and exported variables carry over from one command to
// the next, and to the next process of the same session: they are kept in
// $HOME/.local/state/astrabox-shell. Functions, aliases and variables that
// aren't exported don't carry over, and neither does anything from a command
// that replaces the shell (exec) or sets an EXIT trap of its own.
//
// Commands never wait for the reader of stdout: output is taken from them as
// they write it and at most 4 MiB a command are held (see output). Errors of a
// command are its output and exit status; errors of the program itself go to
// stderr, which is a file.
package shellagent
