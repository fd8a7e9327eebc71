package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

var (
	killBeforeDestroy = killpoint.New("destroy.before")
	killAfterDestroy  = killpoint.New("destroy.after")
	killVerdictStored = killpoint.New("destroy.stored")
)

// verdict is a destruction under way: two callers share one.
type verdict struct {
	done chan struct{}
	d    sandbox.Destruction
	err  error
}

// Destroy destroys a sandbox that has an open ledger entry and stores the
// verdict. The error is the store's; what became of the sandbox is in the
// Destruction. Without the proof the ledger's loop goes on. A caller whose ctx
// ends leaves the destruction to the others that wait for it.
func (f *Fleet) Destroy(ctx context.Context, r Ref) (sandbox.Destruction, error) {
	key := r.Backend + "\x00" + r.ID
	f.mu.Lock()
	v, running := f.verdicts[key]
	if !running {
		v = &verdict{done: make(chan struct{})}
		f.verdicts[key] = v
	}
	f.mu.Unlock()
	if running {
		select {
		case <-v.done:
			return v.d, v.err
		case <-ctx.Done():
			return sandbox.Destruction{}, ctx.Err()
		}
	}
	// Deferred, so that a verdict that never came frees those who wait, too.
	v.err = context.Canceled
	defer func() {
		f.mu.Lock()
		delete(f.verdicts, key)
		f.mu.Unlock()
		close(v.done)
	}()
	v.d, v.err = f.destroy(ctx, r)
	return v.d, v.err
}

func (f *Fleet) destroy(ctx context.Context, r Ref) (sandbox.Destruction, error) {
	entry, err := f.cfg.Store.LedgerEntry(ctx, r.Backend, r.ID)
	if err != nil {
		return sandbox.Destruction{}, err
	}
	if !entry.EndedAt.IsZero() {
		return sandbox.Destruction{SandboxID: r.ID, Outcome: sandbox.Outcome(entry.Outcome), Detail: entry.Detail}, nil
	}
	killBeforeDestroy.Hit()
	var d sandbox.Destruction
	if b, err := f.backend(r.Backend); err != nil {
		d = sandbox.Destruction{SandboxID: r.ID, Outcome: sandbox.Unconfirmed, Detail: fault.From(err).Public}
	} else {
		d = f.confirm(ctx, b, entry)
	}
	killAfterDestroy.Hit()
	settled := Settles(d, r.ID)
	// A verdict that was reached is stored, also when nobody waits any more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = f.cfg.Store.Update(ctx, func(t *store.Tx) error {
		return t.NoteDestruction(r.Backend, r.ID, string(d.Outcome), d.Detail, settled, t.Now().Add(backoff(entry.Attempts)))
	})
	killVerdictStored.Hit()
	if !settled {
		f.log.Warn("a destruction is not confirmed", "sandbox", r.ID, "outcome", d.Outcome, "detail", d.Detail, "attempt", entry.Attempts+1)
	}
	return d, err
}

// confirm destroys a sandbox that is ours. A backend that can describe its
// sandboxes is asked first whose it is: only Mine may be destroyed, and a row
// may be wrong, as in a state directory that was copied.
func (f *Fleet) confirm(ctx context.Context, b *sandbox.Bound, e *model.LedgerEntry) sandbox.Destruction {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	if b.Inventory == nil || !sandbox.ValidID(e.SandboxID) {
		return sandbox.ConfirmDestroyed(ctx, b, e.SandboxID)
	}
	d := sandbox.Destruction{SandboxID: e.SandboxID}
	info, err := b.Inventory.DescribeSandbox(ctx, e.SandboxID)
	switch {
	case isGone(err): // the proof is made by ConfirmDestroyed, as always
	case err != nil:
		d.Outcome, d.Detail = sandbox.Unconfirmed, "the backend can't be asked whose sandbox it is: "+fault.From(err).Public
		return d
	default:
		if claim := sandbox.ClaimOf(info.Metadata, f.cfg.InstallationID, e.ConversationID); !claim.MayDestroy() {
			d.Outcome, d.Detail = sandbox.Refused, fmt.Sprintf("by its metadata the sandbox is not ours (%s), so nothing was done to it", claim)
			return d
		}
	}
	return sandbox.ConfirmDestroyed(ctx, b, e.SandboxID)
}

// Settles reports whether a verdict ends the ledger's entry for the sandbox id
// and permits to forget it: it is proven gone, or it stays for another owner.
// Unconfirmed and refused ones keep their entry: unconfirmed ones are destroyed
// again, and of refused ones it is asked again whose they are.
func Settles(d sandbox.Destruction, id string) bool {
	return d.ConfirmsGone(id) || d.SandboxID == id && d.Outcome == sandbox.Retained || id == "" && d.Outcome == sandbox.NothingNamed
}

// backoff is how long after a try without proof the next one comes: from one
// second to ten minutes, and some, so that many don't come at once.
func backoff(attempts int64) time.Duration {
	d := 10 * time.Minute
	if attempts < 9 {
		d = min(d, time.Second<<attempts)
	}
	return d + rand.N(d/4+1)
}

// Kick makes the ledger's loop look at once.
func (f *Fleet) Kick() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// Unconfirmed is the number of sandboxes whose end isn't proven yet.
func (f *Fleet) Unconfirmed(ctx context.Context) (int64, error) {
	return f.cfg.Store.OpenLedgerCount(ctx)
}

// Run retries the ledger and sweeps until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { f.ledgerLoop(ctx); return nil })
	g.Go(func() error { f.sweepLoop(ctx); return nil })
	return g.Wait()
}

// The ledger's loop destroys this many at once, and looks at the rows at least
// this often.
const (
	ledgerParallel = 8
	ledgerEvery    = time.Minute
	finishMost     = 1000
)

func (f *Fleet) ledgerLoop(ctx context.Context) {
	for ctx.Err() == nil {
		wait := ledgerEvery
		due, next, err := f.cfg.Store.OpenLedger(ctx, time.Now(), 100)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			f.log.Error("the ledger can't be read", "err", err)
		} else if !next.IsZero() {
			wait = min(wait, max(time.Until(next), 10*time.Millisecond))
		}
		f.destroyAll(ctx, due)
		if len(due) > 0 {
			continue // there may be more
		}
		f.sleep(ctx, wait)
	}
}

// destroyAll tries each entry once.
func (f *Fleet) destroyAll(ctx context.Context, entries []*model.LedgerEntry) {
	var g errgroup.Group
	g.SetLimit(ledgerParallel)
	for _, e := range entries {
		g.Go(func() error {
			d, err := f.Destroy(ctx, Ref{e.Backend, e.SandboxID})
			if err == nil && Settles(d, e.SandboxID) && e.ConversationID != "" && f.cfg.OnDestroyed != nil {
				f.cfg.OnDestroyed(e.ConversationID)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
}

// Finish is for a clean stop: it waits for the destructions that are under way
// and tries each other entry of the ledger once more, due or not, at most
// finishMost of them, until ctx ends. What is open then, the next start tries.
// Call it while Run runs.
func (f *Fleet) Finish(ctx context.Context) error {
	open, _, err := f.cfg.Store.OpenLedger(ctx, time.Now().Add(24*time.Hour), finishMost) // past the longest backoff
	if err != nil {
		return err
	}
	f.destroyAll(ctx, open)
	return nil
}

// sleep waits, or until kicked.
func (f *Fleet) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-f.kick:
	}
}

func (f *Fleet) sweepLoop(ctx context.Context) {
	timer := time.NewTimer(f.cfg.SweepEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if n, err := f.sweep(ctx); err != nil {
			f.log.Warn("the sweep could not list the sandboxes", "err", err)
		} else if n > 0 {
			f.log.Info("the sweep found sandboxes that nobody names", "count", n)
		}
		timer.Reset(f.cfg.SweepEvery)
	}
}

// sweep puts the sandboxes of this installation that no row names, and that are
// older than the grace time, into the ledger. A listing that fails is an error
// and not an empty inventory. It reports how many it found.
func (f *Fleet) sweep(ctx context.Context) (found int, err error) {
	for name, b := range f.backends {
		if b.Inventory == nil {
			continue
		}
		infos, err := f.inventory(ctx, b)
		if err != nil {
			return found, err
		}
		for _, info := range infos {
			// The rows are read after the listing: an assignment is stored before
			// its sandbox exists, so what is in the listing and in no row has no
			// owner any more.
			if info.CreatedAt.IsZero() || time.Since(info.CreatedAt) < f.cfg.SweepGrace {
				continue
			}
			switch claim := sandbox.ClaimOf(info.Metadata, f.cfg.InstallationID, ""); {
			case claim == sandbox.ClaimUnclaimed:
				f.log.Warn("a sandbox of this installation names no owner; it is left alone", "backend", name, "sandbox", info.ID)
				continue
			case !claim.MayDestroy(), b.Pool != nil && b.Pool.OwnsUnclaimedSandbox(info):
				continue
			}
			if busy, err := f.holdsSessions(ctx, b, info.ID); err != nil {
				f.log.Warn("a sandbox that nobody names can't be asked for isolated sessions; it is left alone", "backend", name, "sandbox", info.ID, "err", err)
				continue
			} else if busy {
				continue
			}
			named, err := f.cfg.Store.Named(ctx, name, info.ID, info.Metadata[sandbox.KeyAssignmentID])
			if err != nil {
				return found, err
			}
			if named {
				continue
			}
			err = f.cfg.Store.Update(ctx, func(t *store.Tx) error {
				return t.AddToLedger(model.LedgerEntry{Backend: name, SandboxID: info.ID, Reason: "nobody names it"})
			})
			if err != nil {
				return found, err
			}
			found++
		}
	}
	if found > 0 {
		f.Kick()
	}
	return found, nil
}

// holdsSessions reports whether conversations share the sandbox still. One that
// is gone or doesn't run holds none.
func (f *Fleet) holdsSessions(ctx context.Context, b *sandbox.Bound, id string) (bool, error) {
	if b.Isolated == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	n, err := b.Isolated.CountActiveIsolatedSessions(ctx, id)
	if isGone(err) || errors.Is(err, sandbox.ErrNotRunning) {
		return false, nil
	}
	return n > 0, err
}

// maxPages bounds a listing that never ends.
const maxPages = 1000

func (f *Fleet) inventory(ctx context.Context, b *sandbox.Bound) ([]sandbox.Info, error) {
	want := map[string]string{sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: f.cfg.InstallationID}
	var all []sandbox.Info
	page := ""
	for range maxPages {
		callCtx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
		infos, next, err := b.Inventory.ListSandboxes(callCtx, want, page)
		cancel()
		if err != nil {
			return nil, err
		}
		all = append(all, infos...)
		if next == "" {
			return all, nil
		}
		page = next
	}
	return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the listing of the backend %s has more than %d pages", b.Name(), maxPages)
}
