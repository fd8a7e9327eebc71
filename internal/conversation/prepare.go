package conversation

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

// prepareScript makes the account and the workspace; see the comments in it.
//
//go:embed prepare.sh
var prepareScript string

// Times that preparing may take.
const (
	prepareTimeout = 60 * time.Second
	readyTimeout   = 60 * time.Second // of the program's handshake
)

var accountForm = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// bringUp makes the sandbox ready for use and opens the Agent program in it:
// the process that the rows name where there is one, else a new one.
func (k *keeper) bringUp(ctx context.Context, h sandbox.Handle, fresh bool) error {
	p, err := k.s.store.Program(ctx, k.id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil && p.ProcessID != "" {
		killPrepared.Hit()
		// A process that can't be found ran no turn: a new one takes its place.
		if err := k.attach(ctx, h, p); !errors.Is(err, errProgramGone) {
			return err
		}
	}
	program, ok := agentprogram.ByID(k.env.Program)
	if !ok {
		return fault.New(fault.ProgramMissing, "The Agent program %q is not known.", k.env.Program)
	}
	if err := k.prepare(ctx, h, program, fresh); err != nil {
		return err
	}
	killPrepared.Hit()
	return k.openProgram(ctx, h, program, p)
}

// prepare makes the account and the workspace where they are missing, and
// writes the program's binary where it is missing or another one.
func (k *keeper) prepare(ctx context.Context, h sandbox.Handle, program agentprogram.Program, fresh bool) error {
	if !accountForm.MatchString(k.env.Account) {
		return fault.New(fault.SettingInvalid, "%q can't be the name of an account.", k.env.Account)
	}
	env := map[string]string{"ACCOUNT": k.env.Account, "WORKSPACE": Workspace}
	if fresh {
		env["FRESH"] = "1"
	}
	var want binary
	if b := program.Binary; b != nil {
		var err error
		if want, err = k.s.files.find(*b, k.s.cfg.AgentBinary); err != nil {
			return fault.Wrap(fault.ProgramMissing, err, "The Agent program's binary %s is not installed beside AstraBox.", b.Name)
		}
		env["BINARY"], env["MARK"] = b.Path, markOf(b.Path)
	}
	res, err := h.Commands().Run(ctx, sandbox.Command{Line: prepareScript, Dir: "/", Env: env, Timeout: prepareTimeout})
	if err != nil {
		return fmt.Errorf("prepare the sandbox: %w", err)
	}
	if res.ExitCode != 0 {
		return fault.Wrap(fault.SandboxStartFailed, fmt.Errorf("exit status %d: %s", res.ExitCode, tail(res.Stderr)),
			"The account or the workspace could not be made in the sandbox.")
	}
	if program.Binary == nil || strings.TrimSpace(string(res.Stdout)) == want.mark() {
		return nil
	}
	return k.writeBinary(ctx, h.Files(), program.Binary.Path, want)
}

// writeBinary writes the binary, and after it the mark that says which one it
// is: a cut-off write leaves no mark.
func (k *keeper) writeBinary(ctx context.Context, files sandbox.Files, to string, b binary) error {
	f, err := os.Open(b.path)
	if err != nil {
		return fault.Wrap(fault.ProgramMissing, err, "")
	}
	defer f.Close()
	err = files.Write(ctx, to, f, sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o755), Owner: "root", Group: "root"}})
	if err != nil {
		return fmt.Errorf("write the Agent program: %w", err)
	}
	err = files.Write(ctx, markOf(to), strings.NewReader(b.mark()+"\n"), sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o644), Owner: "root", Group: "root"}})
	if err != nil {
		return fmt.Errorf("write the Agent program's mark: %w", err)
	}
	return nil
}

// markOf is the file beside a binary that holds its mark.
func markOf(binary string) string {
	return path.Join(path.Dir(binary), "."+path.Base(binary)+".sum")
}

// binary is a local file that is written into sandboxes.
type binary struct {
	path string
	size int64
	sum  string
	mod  time.Time
}

// mark is what the prepare script prints for this binary: its sum as noted
// beside it, and the size that it has.
func (b binary) mark() string { return fmt.Sprintf("%s %d", b.sum, b.size) }

// binaries remembers the sums of local binaries.
type binaries struct {
	mu sync.Mutex
	by map[string]binary
}

// find finds the local file and its sum, which is read again when the file was
// replaced.
func (c *binaries) find(b agentprogram.Binary, locate func(agentprogram.Binary) (string, error)) (binary, error) {
	if locate == nil {
		return binary{}, errors.New("no place of binaries is configured")
	}
	path, err := locate(b)
	if err != nil {
		return binary{}, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return binary{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.by[b.Name]; ok && have.path == path && have.size == st.Size() && have.mod.Equal(st.ModTime()) {
		return have, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return binary{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return binary{}, err
	}
	if c.by == nil {
		c.by = map[string]binary{}
	}
	c.by[b.Name] = binary{path, n, hex.EncodeToString(sum.Sum(nil)), st.ModTime()}
	return c.by[b.Name], nil
}

func tail(b []byte) string {
	const most = 1000
	s := strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
	if len(s) > most {
		s = "…" + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}

// openProgram registers a new process of the program, stores it with the bytes
// that open the session, and attaches, which starts it.
func (k *keeper) openProgram(ctx context.Context, h sandbox.Handle, program agentprogram.Program, before *model.Program) error {
	p := &model.Program{ConversationID: k.id}
	if before != nil {
		*p = *before
	}
	p.Program = program.ID
	p.Generation++
	m, err := agentprogram.New(program.ID)
	if err != nil {
		return err
	}
	if p.Outbox, err = m.Open(agentprogram.OpenOptions{Cwd: Workspace, NativeSession: p.NativeSession}); err != nil {
		return err
	}
	if p.Machine, err = m.State(); err != nil {
		return err
	}
	// The key holds the generation: a crash between here and the row finds the
	// same process again, which nobody has started.
	p.ProcessID, err = h.Processes().Start(ctx, sandbox.ProcessSpec{
		Key: fmt.Sprintf("program-%s-%d", k.id, p.Generation), Line: program.Command(), Dir: Workspace,
		Env: k.env.Env, User: k.env.Account, Buffer: programBuffer, Full: sandbox.Block})
	if err != nil {
		return fmt.Errorf("start the Agent program: %w", err)
	}
	killRegistered.Hit()
	p.OutputAt, p.StdinAt, p.ReadyBy = 0, 0, time.Now().Add(readyTimeout)
	err = k.change(ctx, func(t *store.Tx, r *model.Record) error {
		if err := t.DropLinePieces(k.id); err != nil {
			return err
		}
		if r.Runtime.State == model.RuntimeStarting {
			if err := t.Event(r, "", model.EventStarting, map[string]string{"step": "program"}); err != nil {
				return err
			}
		}
		return t.SaveProgram(p)
	})
	if err != nil {
		return err
	}
	killProgramStored.Hit()
	return k.attach(ctx, h, p)
}
