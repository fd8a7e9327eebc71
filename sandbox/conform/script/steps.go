package script

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The functions below make the steps; each template's Doc says what it does.
// Numbers and times that are negative count as 0, times are rounded to
// milliseconds. Signals are named with or without SIG.

// Emit writes bytes to stdout.
func Emit(b string) Step { return step("emit", b) }

// EmitErr writes bytes to stderr.
func EmitErr(b string) Step { return step("emit-err", b) }

// Big writes n bytes of [BigOutput] to stdout.
func Big(n int) Step { return step("big", number(n)) }

// BigErr writes n bytes of [BigOutput] to stderr.
func BigErr(n int) Step { return step("big-err", number(n)) }

// BigOutput gives bytes [from, to) of what Big writes.
func BigOutput(from, to int64) []byte {
	b := make([]byte, 0, max(to-from, 0))
	for from < to {
		piece := bigBlock[from%int64(len(bigLine)):]
		n := min(to-from, int64(len(piece)))
		b = append(b, piece[:n]...)
		from += n
	}
	return b
}

const bigLine = "0123456789abcde\n"

var bigBlock = strings.Repeat(bigLine, 1024)

// Lines writes the numbers from 1 to n.
func Lines(n int) Step { return step("lines", number(n)) }

// LinesOutput is what Lines writes.
func LinesOutput(n int) []byte {
	var b []byte
	for i := 1; i <= n; i++ {
		b = append(strconv.AppendInt(b, int64(i), 10), '\n')
	}
	return b
}

// Tick writes the numbers from 1 to n and sleeps after each.
func Tick(n int, pause time.Duration) Step { return step("tick", number(n), seconds(pause)) }

// Exit ends the line with a status from 0 to 255.
func Exit(status int) Step { return step("exit", number(status)) }

// Die kills the shell with a signal.
func Die(signal string) Step { return step("die", bare(signal)) }

// Ignore ignores a signal.
func Ignore(signal string) Step { return step("ignore", bare(signal)) }

// Catch writes caught and exits with the status when the signal comes.
func Catch(signal string, status int) Step { return step("catch", number(status), bare(signal)) }

// Sleep sleeps.
func Sleep(d time.Duration) Step { return step("sleep", seconds(d)) }

// Cat copies stdin to stdout.
func Cat() Step { return step("cat") }

// Count counts the bytes of stdin.
func Count() Step { return step("count") }

// ReadLine reads one line and writes it in angle brackets.
func ReadLine() Step { return step("read-line") }

// TTYSize writes the terminal's rows and columns.
func TTYSize() Step { return step("tty-size") }

// IsTTY says whether there is a terminal.
func IsTTY() Step { return step("is-tty") }

// Env writes a variable.
func Env(name string) Step { return step("env", name) }

// Export gives a variable a value.
func Export(name, value string) Step { return step("export", name, value) }

// Cd goes to a directory.
func Cd(dir string) Step { return step("cd", dir) }

// Pwd writes the working directory.
func Pwd() Step { return step("pwd") }

// User writes the account's name.
func User() Step { return step("user") }

// Group writes the name of the account's group.
func Group() Step { return step("group") }

// CatFile writes a file's content.
func CatFile(path string) Step { return step("cat-file", path) }

// WriteFile gives a file its content.
func WriteFile(path, content string) Step { return step("write", content, path) }

// Append appends to a file.
func Append(path, content string) Step { return step("append", content, path) }

// Stat describes a file.
func Stat(path string) Step { return step("stat", path) }

// Watch describes a file over and over until stop exists.
func Watch(path, stop string) Step { return step("watch", stop, path) }

// List writes the names in a directory.
func List(dir string) Step { return step("list", dir) }

// Fill makes n empty files in a directory.
func Fill(dir string, n int) Step { return step("fill", dir, number(n)) }

// Link makes a symlink.
func Link(target, path string) Step { return step("link", target, path) }

// FIFO makes a named pipe.
func FIFO(path string) Step { return step("fifo", path) }

// WaitFor waits until a path exists.
func WaitFor(path string) Step { return step("wait-for", path) }

// Churn makes and removes a file until stop exists.
func Churn(path, stop string) Step { return step("churn", path, stop) }

// Flip makes path in turn a directory and a link to target until stop exists.
func Flip(path, target, stop string) Step { return step("flip", path, target, stop) }

// Self writes the shell's process id to a file.
func Self(pidFile string) Step { return step("self", pidFile) }

// Kinds of children that [Spawn] starts.
const (
	Plain   = "spawn"
	Holding = "spawn-holding" // keeps the shell's output open
	Orphan  = "spawn-orphan"  // its parent has ended
	Deaf    = "spawn-deaf"    // ignores the signals that ask
	Setsid  = "spawn-setsid"  // in a session of its own
	Bare    = "spawn-bare"    // in a session of its own and without environment
)

// Spawn starts a child of a kind that sleeps for d, with its process id in a file.
func Spawn(kind string, d time.Duration, pidFile string) Step {
	if byName[kind] == nil || !strings.HasPrefix(kind, Plain) {
		kind = Plain
	}
	return step(kind, seconds(d), pidFile)
}

// Alive says whether a process runs.
func Alive(pidFile string) Step { return step("alive", pidFile) }

// Kill sends a signal to a process.
func Kill(signal, pidFile string) Step { return step("kill", bare(signal), pidFile) }

func step(name string, args ...string) Step { return Step{name, args} }

func number(n int) string { return strconv.Itoa(max(n, 0)) }

func seconds(d time.Duration) string {
	ms := max(d.Round(time.Millisecond), 0).Milliseconds()
	return fmt.Sprintf("%d.%03d", ms/1000, ms%1000)
}

func bare(signal string) string { return strings.TrimPrefix(signal, "SIG") }
