// Package agentprogram knows the Agent programs that a conversation can talk
// to, and the protocols they speak on stdin and stdout.
//
// It answers two questions. [Program] says how a program is started in a
// sandbox and which binary it needs there. [Machine] says what bytes to write
// to its stdin and what its output lines mean, as events of the conversation's
// journal.
//
// A machine is pure: no I/O, no clock, no goroutines, no randomness. The caller
// (package conversation) owns the process, cuts its output into lines, and
// stores the events, the machine's State and the offset of the line's end in
// one transaction. After a crash it restores the machine from that state and
// feeds the lines from that offset again; the same lines give the same events
// and the same bytes to write.
//
// A machine is for one goroutine at a time. Bad input from the program never
// panics and is rarely an error: what can't be understood is skipped and
// counted ([Result.Skipped]), since one odd line must not cost a conversation.
package agentprogram
