package demo

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/inventory"
	"github.com/astrabox/astrabox/internal/model"
)

func (w *walk) start(ctx context.Context) (string, error) {
	var err error
	if w.before, err = w.place.Take(); err != nil {
		return "", err
	}
	if err := w.server.Start(ctx); err != nil {
		return "", err
	}
	if w.place.Installation, err = w.server.Installation(); err != nil {
		return "", err
	}
	c, err := w.api.CreateConversation(ctx, wire.CreateConversation{Title: "Demo"}, "")
	if err != nil {
		return "", err
	}
	w.conversation = c.ID
	return c.ID, nil
}

func (w *walk) message(ctx context.Context) (string, error) {
	t, err := w.say(ctx, `echo one > note.txt; cat note.txt; for i in 1 2 3; do sleep 0.3; echo tick $i; done`)
	if err != nil {
		return "", err
	}
	if want := "one\ntick 1\ntick 2\ntick 3\n"; t.output != want {
		return "", expected("%q", "%q", want, t.output)
	}
	if lead := t.ended.Sub(t.first); lead < 600*time.Millisecond {
		return "", expected("the first output at least 600 ms before the end", "%v", lead)
	}
	c, err := w.get(ctx)
	if err != nil {
		return "", err
	}
	w.sandbox = c.Runtime.SandboxID
	if w.sandbox == "" || c.Runtime.State != model.RuntimeReady {
		return "", expected("a ready sandbox", "state %q, id %q", c.Runtime.State, w.sandbox)
	}
	return fmt.Sprintf("first output after %d ms in sandbox %s", t.first.Sub(t.sent).Milliseconds(), w.sandbox), nil
}

func (w *walk) files(ctx context.Context) (string, error) {
	body, err := w.readFile(ctx, "/workspace/note.txt")
	if err != nil {
		return "", err
	}
	if body != "one\n" {
		return "", expected(`note.txt to hold "one\n"`, "%q", body)
	}
	const text = "from the API: ä ☃\n"
	e, err := w.writeFile(ctx, "/workspace/api.txt", text)
	if err != nil {
		return "", err
	}
	if e.Owner != "agent" || e.Mode != "0640" {
		return "", expected("owner agent and mode 0640", "owner %s and mode %s", e.Owner, e.Mode)
	}
	t, err := w.say(ctx, `cat api.txt; stat -c '%U %G %a %s' api.txt`)
	if err != nil {
		return "", err
	}
	if want := fmt.Sprintf("%sagent agent 640 %d\n", text, len(text)); t.output != want {
		return "", expected("the sandbox to see %q", "%q", want, t.output)
	}
	packed, err := w.archive(ctx, "/workspace")
	if err != nil {
		return "", err
	}
	if packed["note.txt"] != "one\n" || packed["api.txt"] != text {
		return "", expected("both files in the folder's archive", "%q", packed)
	}
	return "note.txt read, api.txt written as agent with 0640 and seen inside, both in the folder's archive", nil
}

func (w *walk) terminal(ctx context.Context) (string, error) {
	term, err := w.openTerminal(ctx)
	if err != nil {
		return "", err
	}
	defer term.Close()
	if err := term.send(ctx, "sleep 1000 # wait\r"); err != nil {
		return "", err
	}
	if err := term.waitFor(ctx, "# wait"); err != nil {
		return "", err
	}
	// The sleep runs once the sandbox's own /proc shows it. A small system has no pgrep.
	t, err := w.say(ctx, `i=0; until grep -qsx sleep /proc/[0-9]*/comm; do i=$((i+1)); [ $i -lt 200 ] || { echo none; break; }; sleep 0.05; done`)
	if err != nil {
		return "", err
	}
	if t.output != "" {
		return "", expected("the sleep among the sandbox's processes", "%q", t.output)
	}
	began := time.Now()
	if err := term.send(ctx, "\x03"); err != nil {
		return "", err
	}
	if err := term.send(ctx, "echo alive-$((40+2))\r"); err != nil {
		return "", err
	}
	if err := term.waitFor(ctx, "alive-42"); err != nil {
		return "", err
	}
	return fmt.Sprintf("the shell answered %d ms after Ctrl-C", time.Since(began).Milliseconds()), nil
}

const count = 40

// counting is a command that takes about 4 s and prints prefix 1 to prefix 40.
func counting(prefix string) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo %s $i; sleep 0.1; done", count, prefix)
}

func counted(prefix string) string {
	var b strings.Builder
	for i := 1; i <= count; i++ {
		fmt.Fprintf(&b, "%s %d\n", prefix, i)
	}
	return b.String()
}

func (w *walk) killServer(ctx context.Context) (string, error) {
	term, err := w.openTerminal(ctx)
	if err != nil {
		return "", err
	}
	defer func() { term.Close() }()
	// The prefix is put together inside, so that the echo of the line isn't taken for output.
	if err := term.send(ctx, "p=te; "+counting(`${p}rm`)+"; echo ${p}rm done\r"); err != nil {
		return "", err
	}
	turn, err := w.send(ctx, counting("line"))
	if err != nil {
		return "", err
	}
	if err := w.follow(ctx, turn, "line 10\n"); err != nil {
		return "", err
	}
	if err := term.waitFor(ctx, "term 10\r\n"); err != nil {
		return "", err
	}
	if err := w.server.Kill(); err != nil {
		return "", err
	}
	term.drain() // what was on its way when the connection broke
	began := time.Now()
	if err := w.server.Start(ctx); err != nil {
		return "", err
	}
	back := time.Since(began)
	if err := term.reconnect(ctx); err != nil {
		return "", err
	}
	t, err := w.wait(ctx, turn)
	if err != nil {
		return "", err
	}
	if want := counted("line"); t.output != want {
		return "", expected("40 lines, each once", "%q", t.output)
	}
	if err := w.dense(ctx); err != nil {
		return "", err
	}
	if err := term.waitFor(ctx, "term done\r\n"); err != nil {
		return "", err
	}
	if want := strings.ReplaceAll(counted("term"), "\n", "\r\n"); !strings.Contains(term.text(), want) {
		return "", expected("the terminal's 40 lines, each once", "%q", term.text())
	}
	return fmt.Sprintf("ready again after %d ms; 40 lines of the command and 40 of the terminal, each once", back.Milliseconds()), nil
}

// dense checks that the journal is numbered from 1 without gaps.
func (w *walk) dense(ctx context.Context) error {
	events, err := w.events(ctx)
	if err != nil {
		return err
	}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			return expected("event number %d", "%d", i+1, e.Seq)
		}
	}
	return nil
}

func (w *walk) killSandboxd(ctx context.Context) (string, error) {
	service, err := w.server.Service()
	if err != nil {
		return "", err
	}
	before, err := w.place.Processes()
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(service.PID, syscall.SIGKILL); err != nil {
		return "", fmt.Errorf("kill sandboxd %d: %w", service.PID, err)
	}
	t, err := w.say(ctx, "echo still $((1+1))")
	if err != nil {
		return "", err
	}
	if t.output != "still 2\n" {
		return "", expected(`"still 2\n"`, "%q", t.output)
	}
	c, err := w.get(ctx)
	if err != nil {
		return "", err
	}
	if c.Runtime.SandboxID != w.sandbox {
		return "", expected("the same sandbox %s", "%s", w.sandbox, c.Runtime.SandboxID)
	}
	after, err := w.place.Processes()
	if err != nil {
		return "", err
	}
	if init := only(before, " execd"); init == "" || init != only(after, " execd") {
		return "", expected("the sandbox's first process to be the same (%q)", "%q", init, only(after, " execd"))
	}
	// The server starts a service again by itself; the next steps need it.
	for {
		if s, err := w.server.Service(); err == nil && s.PID != service.PID {
			return fmt.Sprintf("the sandbox answered; sandboxd came back as process %d", s.PID), nil
		}
		select {
		case <-ctx.Done():
			return "", expected("sandboxd to be started again", "no new one")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func only(names []string, suffix string) string {
	var found []string
	for _, n := range names {
		if strings.HasSuffix(n, suffix) {
			found = append(found, n)
		}
	}
	return strings.Join(found, ", ")
}

func (w *walk) idle(ctx context.Context) (string, error) {
	if _, err := w.say(ctx, `mkdir -p deep && cd deep && export KEPT="a value"; pwd`); err != nil {
		return "", err
	}
	used, err := w.sandboxMemory()
	if err != nil {
		return "", err
	}
	if used == 0 {
		return "", expected("the running sandbox to use memory", "none")
	}
	began := time.Now()
	for {
		c, err := w.get(ctx)
		if err != nil {
			return "", err
		}
		if c.Runtime.State == model.RuntimePaused {
			break
		}
		select {
		case <-ctx.Done():
			return "", expected("the sandbox to be paused after %v", "state %s", idleAfter, c.Runtime.State)
		case <-time.After(50 * time.Millisecond):
		}
	}
	took := time.Since(began)
	rest, err := w.sandboxMemory()
	if err != nil {
		return "", err
	}
	if rest != 0 {
		return "", expected("no memory in use by the paused sandbox", "%d bytes", rest)
	}
	running, err := w.place.Processes()
	if err != nil {
		return "", err
	}
	if left := only(running, " execd"); left != "" {
		return "", expected("no process of the sandbox", "%s", left)
	}
	return fmt.Sprintf("paused after %.1f s, %.1f MiB given back", took.Seconds(), float64(used)/(1<<20)), nil
}

// sandboxMemory is what the installation's sandboxes use, by the kernel's account.
func (w *walk) sandboxMemory() (int64, error) {
	var total int64
	for _, pattern := range []string{"/sys/fs/cgroup/memory/astrabox-*/*/memory.usage_in_bytes", "/sys/fs/cgroup/astrabox-*/*/memory.current"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return 0, err
		}
		for _, f := range found {
			if !strings.Contains(f, w.sandbox) {
				continue
			}
			b, err := os.ReadFile(f)
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				return 0, err
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	return total, nil
}

func (w *walk) resume(ctx context.Context) (string, error) {
	t, err := w.say(ctx, `pwd; echo "$KEPT"; cat /workspace/note.txt /workspace/api.txt`)
	if err != nil {
		return "", err
	}
	if want := "/workspace/deep\na value\none\nfrom the API: ä ☃\n"; t.output != want {
		return "", expected("%q", "%q", want, t.output)
	}
	c, err := w.get(ctx)
	if err != nil {
		return "", err
	}
	if c.Runtime.SandboxID != w.sandbox {
		return "", expected("the same sandbox %s", "%s", w.sandbox, c.Runtime.SandboxID)
	}
	return fmt.Sprintf("output %d ms after the message", t.first.Sub(t.sent).Milliseconds()), nil
}

func (w *walk) delete(ctx context.Context) (string, error) {
	c, err := w.api.Delete(ctx, w.conversation)
	if err != nil {
		return "", err
	}
	if d := c.Destruction; d == nil || d.Outcome != "gone" || d.SandboxID != w.sandbox {
		return "", expected("the destruction of %s to be confirmed", "%+v", w.sandbox, d)
	}
	status, err := w.server.AskService(ctx, "/sandboxes/"+w.sandbox)
	if err != nil {
		return "", err
	}
	if status != http.StatusNotFound {
		return "", expected("the service to answer 404 for the sandbox", "%d", status)
	}
	now, err := w.place.Take()
	if err != nil {
		return "", err
	}
	for _, line := range inventory.Added(w.before, now) {
		if strings.Contains(line, w.sandbox) || strings.Contains(line, " execd") {
			return "", expected("nothing of the sandbox on the host", "%s", line)
		}
	}
	return c.Destruction.Detail, nil
}

func (w *walk) clean(ctx context.Context) (string, error) {
	if err := w.server.Stop(ctx); err != nil {
		return "", err
	}
	var left []string
	for {
		now, err := w.place.Take()
		if err != nil {
			return "", err
		}
		if left = inventory.Added(w.before, now); len(left) == 0 {
			return "no process, mount, link, cgroup, nft table, port or directory more than before", nil
		}
		select { // a process that was told to end may take a moment
		case <-ctx.Done():
			return "", expected("nothing left", "%s", strings.Join(left, "; "))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
