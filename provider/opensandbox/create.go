package opensandbox

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
)

// waiting is the entrypoint of a sandbox whose spec asks for none. Services
// differ in what they do without one, so one is always sent.
var waiting = []string{"tail", "-f", "/dev/null"}

const (
	// cleanup bounds the destruction of a sandbox whose create failed or was
	// given up.
	cleanup = 60 * time.Second
	// channelBudget is how long a sandbox that runs may take to answer.
	channelBudget = 10 * time.Second
	channelEvery  = 100 * time.Millisecond
	// reservedEnv are variables that belong to services.
	reservedEnv = "OPENSANDBOX_EGRESS_"
	// spentKeys is how often a create may find that its assignment had a
	// sandbox that is gone.
	spentKeys = 16
)

// Create implements sandbox.Provider. Under an assignment that has a sandbox
// already it returns that one.
func (p *Provider) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	body, err := createBody(spec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*p.ready+channelBudget)
	defer cancel()
	for range 2 { // a lost predecessor is removed once
		found, ok, err := p.findOwn(ctx, spec)
		if err != nil {
			return nil, err
		}
		if !ok {
			return p.create(ctx, spec, body)
		}
		if isLost(found.State) || found.State == stateStopping {
			if err := p.destroy(ctx, found.ID, fmt.Errorf("it is %s", found.State)); err != nil {
				return nil, err
			}
			continue
		}
		if isPaused(found.State) || found.State == statePausing {
			e := sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox of assignment %s is %s", spec.AssignmentID, found.State)
			e.SandboxID = found.ID
			return nil, e
		}
		p.log.Info("continuing with the sandbox of an earlier create", "sandbox", found.ID, "state", found.State)
		return p.finish(ctx, spec, found.ID, found.State)
	}
	return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the sandboxes of assignment %s end as soon as they are made", spec.AssignmentID)
}

func conflict(id string, spec sandbox.CreateSpec) error {
	e := sandbox.Errorf(sandbox.CodeAssignmentConflict, "assignment %s has a sandbox of another owner", spec.AssignmentID)
	e.SandboxID = id
	return e
}

func createBody(spec sandbox.CreateSpec) (wire.CreateRequest, error) {
	var none wire.CreateRequest
	if err := spec.Validate(); err != nil {
		return none, err
	}
	if err := declared.CheckLevel(Name, spec.PermissionLevel); err != nil {
		return none, err
	}
	// What the service isn't asked for yet is refused, not left out.
	switch {
	case len(spec.WorkspaceMounts) > 0:
		return none, sandbox.Errorf(sandbox.CodeUnsupported, "open_sandbox: WorkspaceMounts aren't supported")
	case spec.NetworkPolicy != nil:
		return none, sandbox.Missing("CreateNetworkPolicy", Name)
	case spec.CredentialProxy || !spec.Vault.IsZero():
		return none, sandbox.Missing("EgressCredentialInjection", Name)
	}
	for k := range spec.Env {
		if strings.HasPrefix(k, reservedEnv) {
			return none, sandbox.Errorf(sandbox.CodeInvalid, "Env: names that start with %s belong to the service", reservedEnv)
		}
	}
	metadata, err := labels(spec.OwnershipMetadata())
	if err != nil {
		return none, err
	}
	body := wire.CreateRequest{
		Image: &wire.Image{URI: spec.Image}, Entrypoint: spec.Entrypoint, Env: spec.Env, Metadata: metadata,
		ResourceLimits: spec.ResourceLimits, ResourceRequests: spec.ResourceRequests,
	}
	if body.Entrypoint == nil {
		body.Entrypoint = waiting
	}
	if spec.TTL > 0 {
		seconds := int64((spec.TTL + time.Second - 1) / time.Second) // never less than asked for
		body.Timeout = &seconds
	}
	return body, nil
}

// idempotencyKey stands for the assignment. Its count grows when the service
// says that the sandbox under a key is gone.
func idempotencyKey(spec sandbox.CreateSpec, count int) string {
	sum := sha256.Sum256([]byte(spec.InstallationID + "\x00" + spec.AssignmentID))
	return fmt.Sprintf("astrabox-%s-%d", strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20])), count)
}

// create asks the service for a new sandbox. When the answer is lost, the
// sandbox that may have been made is looked for by its assignment: a service
// that doesn't know Idempotency-Key would make a second one if asked again.
//
// The request isn't cancelled with ctx: the service may have it and not have
// begun, and would make the sandbox after the look that found none.
func (p *Provider) create(ctx context.Context, spec sandbox.CreateSpec, body wire.CreateRequest) (sandbox.Handle, error) {
	var made wire.Sandbox
	asked, stop := context.WithCancel(context.WithoutCancel(ctx))
	answer := make(chan error, 1)
	var asking sync.WaitGroup
	asking.Go(func() { answer <- p.ask(asked, spec, body, &made) })
	defer asking.Wait()
	defer stop()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		return nil, p.abandon(ctx, spec, &made, answer)
	}
	var r *refusal
	switch {
	case err == nil:
		return p.finish(ctx, spec, made.ID, stateOf(made))
	case errors.As(err, &r) && r.code == "IDEMPOTENCY_KEY_REUSED":
		return nil, sandbox.Errorf(sandbox.CodeAssignmentConflict, "assignment %s is being created with another spec", spec.AssignmentID)
	}
	may, limit := mayHaveMade(err)
	if !may {
		return nil, failed(err, "", sandbox.CodeUnavailable)
	}
	found, ok, findErr := p.search(ctx, spec, limit)
	switch {
	case findErr != nil:
		return nil, failed(errors.Join(err, findErr), "", sandbox.CodeUnavailable)
	case !ok:
		return nil, failed(err, "", sandbox.CodeUnavailable)
	case ctx.Err() != nil:
		return nil, p.undo(ctx, found.ID, err)
	}
	return p.finish(ctx, spec, found.ID, found.State)
}

// lostSearch is how long a sandbox is looked for whose create had no answer: the
// service may be at it still.
const lostSearch = 10 * time.Second

// mayHaveMade says whether a sandbox may be there after a create that failed,
// and how long it is to be looked for. A refusal is the service's word that
// nothing was made. A failure of its own may leave one, and one of something in
// between, such as a proxy that didn't wait for the service, says nothing.
func mayHaveMade(err error) (may bool, limit time.Duration) {
	var r *refusal
	switch {
	case unsent(err), errors.As(err, &r) && r.status < 500:
		return false, 0
	case r != nil && r.code != "":
		return true, 0
	}
	return true, lostSearch
}

// search looks for the assignment's sandbox until it is seen, the time is up or
// ctx has ended, and once at least. A look that fails is made again within that
// time: what took the answer of the create may take that of the look as well.
func (p *Provider) search(ctx context.Context, spec sandbox.CreateSpec, limit time.Duration) (sandbox.Info, bool, error) {
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	end := time.Now().Add(limit)
	for wait := pollFirst; ; wait = min(2*wait, pollMax) {
		found, ok, err := p.findOwn(look, spec)
		if ok || err != nil && !mayPass(err) || ctx.Err() != nil || !time.Now().Before(end) {
			return found, ok, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// mayPass reports whether an error may not come again.
func mayPass(err error) bool {
	var e *sandbox.Error
	return errors.As(err, &e) && e.Retryable
}

// ask sends the request, under the next key when one is spent.
func (p *Provider) ask(ctx context.Context, spec sandbox.CreateSpec, body wire.CreateRequest, made *wire.Sandbox) (err error) {
	for count := range spentKeys {
		*made = wire.Sandbox{}
		err = p.api.do(ctx, call{
			method: http.MethodPost, path: "sandboxes", body: body, timeout: p.ready,
			header: map[string]string{wire.HeaderIdempotencyKey: idempotencyKey(spec, count)},
		}, made)
		var r *refusal
		if !errors.As(err, &r) || r.code != "IDEMPOTENCY_KEY_SPENT" {
			break
		}
	}
	if err == nil && !sandbox.ValidID(made.ID) {
		err = sandbox.Errorf(sandbox.CodeUnavailable, "the lifecycle service made a sandbox and didn't name it")
	}
	return err
}

// findOwn looks for the assignment's sandbox; another owner's is an error.
func (p *Provider) findOwn(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Info, bool, error) {
	found, ok, err := p.FindSandboxByAssignment(ctx, spec.InstallationID, spec.AssignmentID)
	if err == nil && ok && found.Metadata[sandbox.KeySessionID] != project(sandbox.KeySessionID, spec.OwnerID) {
		return found, false, conflict(found.ID, spec)
	}
	return found, ok, err
}

// abandon ends a create that nobody waits for any more. The sandbox is
// destroyed as soon as it can be seen, which also ends the making of it; that
// there is none is believed only once the service has answered.
func (p *Provider) abandon(ctx context.Context, spec sandbox.CreateSpec, made *wire.Sandbox, answer <-chan error) error {
	cause := context.Cause(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	for wait := pollFirst; ; wait = min(2*wait, pollMax) {
		found, ok, err := p.findOwn(ctx, spec)
		switch {
		case ok:
			return p.undo(ctx, found.ID, cause)
		case err != nil && ctx.Err() != nil:
			return failed(errors.Join(cause, err), "", sandbox.CodeUnavailable)
		}
		select {
		case err := <-answer:
			if err == nil {
				return p.undo(ctx, made.ID, cause)
			}
			may, limit := mayHaveMade(err)
			if !may {
				return cause
			}
			switch found, ok, err := p.search(ctx, spec, limit); {
			case err != nil:
				return failed(errors.Join(cause, err), "", sandbox.CodeUnavailable)
			case ok:
				return p.undo(ctx, found.ID, cause)
			}
			return cause
		case <-ctx.Done():
			return sandbox.Errorf(sandbox.CodeUnavailable, "the lifecycle service didn't say within %v what became of a create that was given up: %w", cleanup, cause)
		case <-time.After(wait):
		}
	}
}

// finish brings a sandbox that exists to where Create may return it. Whatever
// fails, the sandbox is destroyed.
func (p *Provider) finish(ctx context.Context, spec sandbox.CreateSpec, id, state string) (sandbox.Handle, error) {
	if err := p.awaitRunning(ctx, id, state); err != nil {
		return nil, p.undo(ctx, id, err)
	}
	h := p.handle(id)
	if err := p.prove(ctx, h, spec.RequireCommandChannel); err != nil {
		return nil, p.undo(ctx, id, err)
	}
	if spec.Dir != "" {
		if err := h.Files().MakeDir(ctx, spec.Dir, sandbox.DirOptions{Parents: true}); err != nil {
			return nil, p.undo(ctx, id, fmt.Errorf("make Dir: %w", err))
		}
	}
	if spec.WaitForPort != 0 {
		if err := awaitPort(ctx, h, spec.WaitForPort, p.ready); err != nil {
			return nil, p.undo(ctx, id, err)
		}
	}
	return h, nil
}

// awaitRunning waits for services whose create answers before the sandbox runs.
func (p *Provider) awaitRunning(ctx context.Context, id, state string) error {
	ctx, cancel := context.WithTimeout(ctx, p.ready)
	defer cancel()
	for wait := pollFirst; !isRunning(state); wait = min(2*wait, pollMax) {
		select {
		case <-ctx.Done():
			return sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox stayed %s: %w", state, ctx.Err())
		case <-time.After(wait):
		}
		seen, err := p.Probe(ctx, id)
		switch {
		case err != nil:
			return err
		case seen.Status == sandbox.ObservedGone:
			return sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox went away while it was being made")
		case seen.Status != sandbox.ObservedOK:
		case isLost(seen.State), seen.State == stateStopping, isPaused(seen.State):
			return sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox became %s while it was being made: %s", seen.State, seen.Detail)
		default:
			state = seen.State
		}
	}
	return nil
}

// prove waits until the sandbox answers: a service may call a sandbox running
// that nobody can reach.
func (p *Provider) prove(ctx context.Context, h *handle, command bool) error {
	ctx, cancel := context.WithTimeout(ctx, channelBudget)
	defer cancel()
	for {
		var err error
		if command {
			var r sandbox.CommandResult
			if r, err = h.Commands().Run(ctx, sandbox.Command{Line: ":"}); err == nil && r.ExitCode != 0 {
				return sandbox.Errorf(sandbox.CodeUnavailable, "a command that does nothing exited with %d", r.ExitCode)
			}
		} else {
			_, err = h.Files().Stat(ctx, "/")
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, sandbox.ErrUnreachable) {
			return fmt.Errorf("the new sandbox: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the new sandbox doesn't answer: %w", err)
		case <-time.After(channelEvery):
		}
	}
}

// awaitPort waits until something listens on a port, with a loop inside the
// sandbox: from outside a proxy may answer for a port behind which nothing is.
func awaitPort(ctx context.Context, h *handle, port int, limit time.Duration) error {
	seconds := int(limit / time.Second)
	line := fmt.Sprintf(`i=0; while [ $i -le %d ]; do cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ':%04X [0-9A-F]*:0000 0A ' && exit 0; i=$((i+1)); sleep 0.2; done; exit 7`, 5*seconds, port)
	r, err := h.Commands().Run(ctx, sandbox.Command{Line: line, Timeout: limit})
	switch {
	case err != nil && (errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil):
		return sandbox.Errorf(sandbox.CodeUnavailable, "nothing listened on port %d within %v: %w", port, limit, err)
	case err != nil:
		return fmt.Errorf("wait for port %d: %w", port, err)
	case r.ExitCode != 0:
		return sandbox.Errorf(sandbox.CodeUnavailable, "nothing listened on port %d within %v (the loop in the sandbox ended with %d)", port, limit, r.ExitCode)
	}
	return nil
}

// undo destroys a sandbox whose create failed and gives the error of the
// create, or, when the sandbox may still be there, one that names it.
func (p *Provider) undo(ctx context.Context, id string, cause error) error {
	if err := p.destroy(ctx, id, cause); err != nil {
		return err
	}
	var known *sandbox.Error
	if errors.As(cause, &known) || errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "the create failed, and its sandbox was destroyed: %w", cause)
}

func (p *Provider) destroy(ctx context.Context, id string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	d := sandbox.ConfirmDestroyed(ctx, p, id)
	if d.ConfirmsGone(id) {
		return nil
	}
	p.log.Error("a sandbox may be left over", "sandbox", id, "detail", d.Detail, "cause", cause)
	e := sandbox.Errorf(sandbox.CodeCleanupUnconfirmed, "a sandbox couldn't be used, and it couldn't be confirmed that it is gone (%s): %w", d.Detail, cause)
	e.SandboxID = id
	return e
}
