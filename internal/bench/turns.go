package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/instance"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

// turns measures a whole server: what it adds to a turn, and its memory. The
// floor of a turn is the same program in a sandbox, driven directly.
func turns(ctx context.Context, o Options) (_ []Result, err error) {
	direct, err := newDirect(ctx, o.Exe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, direct.service.close()) }()

	state, err := os.MkdirTemp("", "astrabox-bench-")
	if err != nil {
		return nil, err
	}
	server := instance.New(instance.Config{Exe: o.Exe, StateDir: state, Address: "127.0.0.1:8088"})
	if err := server.Start(ctx); err != nil {
		return nil, err
	}
	defer server.Abandon()
	api, err := server.Client()
	if err != nil {
		return nil, err
	}
	defer api.Close()
	through, err := newThrough(ctx, api)
	if err != nil {
		return nil, err
	}
	defer through.stop()

	var shares, floors []time.Duration
	for i := range 5*o.N + 5 {
		raw, err := direct.turn(ctx)
		if err != nil {
			return nil, err
		}
		whole, err := through.turn(ctx)
		if err != nil {
			return nil, err
		}
		if i >= 5 {
			shares, floors = append(shares, whole-raw), append(floors, raw)
		}
	}
	overhead := timed("turn_overhead", "<= 10 ms", shares, "", nil)
	overhead.Note = fmt.Sprintf("message in -> output out, less %.2f ms for the program driven directly", quantile(millis(floors), 0.5))

	service, err := server.Service()
	if err != nil {
		return nil, err
	}
	var rss float64
	for _, pid := range []int{server.PID(), service.PID} {
		n, err := residentBytes(pid)
		if err != nil {
			return nil, err
		}
		rss += float64(n) / (1 << 20)
	}
	memory := measured("rss_idle_server", "MiB", "<= 120 MiB", []float64{rss}, "", nil)
	memory.Note = "serve and sandboxd after the turns above"

	shell, err := shellMemory(ctx, api)
	if err != nil {
		return nil, err
	}
	if err := deleteAll(ctx, api); err != nil {
		return nil, err
	}
	if err := server.Stop(ctx); err != nil {
		return nil, err
	}
	return []Result{overhead, memory, shell}, os.RemoveAll(state)
}

// shellMemory is the memory of idle sandboxes that have run a message.
func shellMemory(ctx context.Context, api *client.Client) (Result, error) {
	var ids []string
	for range idleBoxes {
		t, err := newThrough(ctx, api)
		if err != nil {
			return Result{}, err
		}
		_, err = t.turn(ctx)
		t.stop()
		if err != nil {
			return Result{}, err
		}
		c, err := api.Conversation(ctx, t.conversation)
		if err != nil {
			return Result{}, err
		}
		ids = append(ids, c.Runtime.SandboxID)
	}
	return pssOf("idle_pss_shell", ids)
}

func deleteAll(ctx context.Context, api *client.Client) error {
	page, err := api.Conversations(ctx, "", 100)
	if err != nil {
		return err
	}
	for _, c := range page.Items {
		if c, err = api.Delete(ctx, c.ID); err != nil {
			return err
		}
		if c.Destruction == nil || c.Destruction.Outcome != string(sandbox.Gone) {
			return fmt.Errorf("bench: the sandbox of %s: %+v", c.ID, c.Destruction)
		}
	}
	return nil
}

// through sends turns through a server and follows its event stream.
type through struct {
	api          *client.Client
	conversation string
	events       chan model.Event
	failed       chan error
	stop         context.CancelFunc
}

func newThrough(ctx context.Context, api *client.Client) (*through, error) {
	c, err := api.CreateConversation(ctx, wire.CreateConversation{}, "")
	if err != nil {
		return nil, err
	}
	t := &through{api: api, conversation: c.ID, events: make(chan model.Event, 64), failed: make(chan error, 1)}
	ctx, t.stop = context.WithCancel(ctx)
	go func() {
		for e, err := range api.Stream(ctx, c.ID, 0) {
			if err != nil {
				t.failed <- err
				return
			}
			select {
			case t.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return t, nil
}

// turn gives the time from a message to its output, and waits for the turn's end.
func (t *through) turn(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	sent, err := t.api.Send(ctx, t.conversation, wire.SendMessage{ClientMessageID: rand.Text(), Text: "echo hi"})
	if err != nil {
		return 0, err
	}
	var took time.Duration
	for {
		select {
		case e := <-t.events:
			switch {
			case e.TurnID != sent.ID:
			case e.Type == agentprogram.EventToolOutput && took == 0:
				took = time.Since(began)
			case e.Type == model.EventTurnEnded:
				if took == 0 {
					return 0, errors.New("bench: a turn ended without output")
				}
				return took, nil
			}
		case err := <-t.failed:
			return 0, err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// direct drives the shell program in a sandbox without the platform.
type direct struct {
	service    *service
	attachment sandbox.Attachment
	machine    agentprogram.Machine
	rest       []byte
	turns      int
}

func newDirect(ctx context.Context, exe string) (_ *direct, err error) {
	d := &direct{}
	if d.service, err = newService(ctx, exe); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.service.close())
		}
	}()
	h, err := d.service.Create(ctx, spec())
	if err != nil {
		return nil, err
	}
	program, ok := agentprogram.ByID(agentprogram.ShellID)
	if !ok {
		return nil, errors.New("bench: there is no shell program")
	}
	local, err := program.Binary.Find(os.Getenv, exe)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(local)
	if err != nil {
		return nil, err
	}
	if err := h.Files().MakeDir(ctx, filepath.Dir(agentprogram.ShellAgentPath), sandbox.DirOptions{Parents: true}); err != nil {
		return nil, err
	}
	if err := h.Files().Write(ctx, agentprogram.ShellAgentPath, bytes.NewReader(b), sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o755)}}); err != nil {
		return nil, err
	}
	id, err := h.Processes().Start(ctx, sandbox.ProcessSpec{Key: "bench", Line: program.Command(), User: "agent", Full: sandbox.Block})
	if err != nil {
		return nil, err
	}
	if d.attachment, err = h.Processes().Attach(ctx, id, sandbox.AttachOptions{}); err != nil {
		return nil, err
	}
	if d.machine, err = agentprogram.New(agentprogram.ShellID); err != nil {
		return nil, err
	}
	out, err := d.machine.Open(agentprogram.OpenOptions{Cwd: "/workspace"})
	if err != nil {
		return nil, err
	}
	return d, d.feed(ctx, out, func(r agentprogram.Result) bool { return r.Ready })
}

// turn gives the time from a prompt to its output, and waits for the turn's end.
func (d *direct) turn(ctx context.Context) (took time.Duration, err error) {
	d.turns++
	began := time.Now()
	out, err := d.machine.Prompt(fmt.Sprintf("turn_%d", d.turns), "echo hi")
	if err != nil {
		return 0, err
	}
	err = d.feed(ctx, out, func(r agentprogram.Result) bool {
		for _, e := range r.Events {
			if e.Type == agentprogram.EventToolOutput && took == 0 {
				took = time.Since(began)
			}
		}
		return r.TurnEnded != nil
	})
	if err == nil && took == 0 {
		err = errors.New("bench: a turn ended without output")
	}
	return took, err
}

// feed sends what the machine wants written and gives it lines until enough.
func (d *direct) feed(ctx context.Context, out []byte, enough func(agentprogram.Result) bool) error {
	for {
		if len(out) > 0 {
			if err := d.attachment.Send(ctx, out); err != nil {
				return err
			}
			out = nil
		}
		line, rest, whole := bytes.Cut(d.rest, []byte("\n"))
		if !whole {
			f, err := d.attachment.Recv(ctx)
			if err != nil {
				return err
			}
			d.rest = append(d.rest, f.Data...)
			if err := d.attachment.Ack(ctx, f.Offset+int64(len(f.Data))); err != nil {
				return err
			}
			continue
		}
		d.rest = rest
		r, err := d.machine.Feed(line)
		if err != nil {
			return err
		}
		out = r.Out
		if enough(r) {
			return nil
		}
	}
}

// residentBytes is a process's resident set.
func residentBytes(pid int) (int64, error) { return statusBytes(pid, "VmRSS") }

// statusBytes is one of the sizes in /proc/PID/status.
func statusBytes(pid int, name string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			var kb int64
			_, err := fmt.Sscan(rest, &kb)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("bench: process %d has no %s", pid, name)
}
