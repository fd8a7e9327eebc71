package opensandbox

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
)

// States that services give, in lower case.
const (
	statePending    = "pending"
	stateRunning    = "running"
	stateReady      = "ready"
	statePausing    = "pausing"
	statePaused     = "paused"
	stateSucceed    = "succeed" // of a pause, in some services
	stateResuming   = "resuming"
	stateStopping   = "stopping"
	stateTerminated = "terminated"
	stateFailed     = "failed"
	stateError      = "error"
)

func isRunning(state string) bool { return state == stateRunning || state == stateReady }
func isPaused(state string) bool  { return state == statePaused || state == stateSucceed }

// isLost: it will not come back by itself.
func isLost(state string) bool {
	return state == stateFailed || state == stateError || state == stateTerminated
}

func stateOf(s wire.Sandbox) string { return strings.ToLower(strings.TrimSpace(s.Status.State)) }

func sandboxPath(id string, more ...string) string {
	return strings.Join(append([]string{"sandboxes", id}, more...), "/")
}

// get reads one sandbox. An answer about another one is no answer.
func (p *Provider) get(ctx context.Context, id string) (wire.Sandbox, error) {
	var s wire.Sandbox
	if err := p.api.do(ctx, call{method: http.MethodGet, path: sandboxPath(id), twice: true}, &s); err != nil {
		return s, err
	}
	if s.ID != id {
		return s, sandbox.Errorf(sandbox.CodeUnavailable, "the lifecycle service was asked for sandbox %s and described another", id)
	}
	return s, nil
}

// Probe implements sandbox.Provider. It says gone only when the service itself
// says so, and otherwise never fails: what can't be read is ObservedError.
func (p *Provider) Probe(ctx context.Context, id string) (sandbox.Observation, error) {
	if err := sandbox.CheckID(id); err != nil {
		return sandbox.Observation{}, err
	}
	s, err := p.get(ctx, id)
	switch {
	case notFound(err):
		return sandbox.Observation{Status: sandbox.ObservedGone, Detail: "the lifecycle service knows no such sandbox"}, nil
	case err != nil:
		return unread(err.Error()), nil
	case stateOf(s) == "":
		return unread("the lifecycle service gave no state"), nil
	}
	return sandbox.Observation{Status: sandbox.ObservedOK, State: stateOf(s), Detail: plain(detail(s), "", textLimit)}, nil
}

func unread(why string) sandbox.Observation {
	return sandbox.Observation{Status: sandbox.ObservedError, Detail: why}
}

func detail(s wire.Sandbox) string {
	return strings.TrimSpace(s.Status.Reason + " " + s.Status.Message)
}

// ExpiresAt implements sandbox.Provider.
func (p *Provider) ExpiresAt(ctx context.Context, id string) (time.Time, error) {
	if err := sandbox.CheckID(id); err != nil {
		return time.Time{}, err
	}
	s, err := p.get(ctx, id)
	if err != nil {
		return time.Time{}, failed(err, id, sandbox.CodeNotFound)
	}
	return end(s), nil
}

func end(s wire.Sandbox) time.Time {
	if s.ExpiresAt == nil {
		return time.Time{}
	}
	return *s.ExpiresAt
}

// Renew implements sandbox.Provider. A sandbox without a scheduled end keeps none.
func (p *Provider) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	if err := sandbox.CheckID(id); err != nil {
		return time.Time{}, err
	}
	if ttl <= 0 {
		return time.Time{}, sandbox.Errorf(sandbox.CodeInvalid, "a renewal by %v would end the sandbox", ttl)
	}
	target := time.Now().Add(ttl).UTC()
	current, err := p.ExpiresAt(ctx, id)
	if err != nil || current.IsZero() || !current.Before(target) {
		return current, err
	}
	var answer wire.Renewal
	err = p.api.do(ctx, call{method: http.MethodPost, path: sandboxPath(id, "renew-expiration"), body: wire.Renewal{ExpiresAt: target}, twice: true}, &answer)
	if err == nil && !answer.ExpiresAt.Before(current) {
		return answer.ExpiresAt, nil
	}
	// Somebody else may have renewed further meanwhile, which services refuse
	// to shorten; what holds now is what counts.
	now, again := p.ExpiresAt(ctx, id)
	switch {
	case again != nil:
		return time.Time{}, again
	case err == nil || now.IsZero() || !now.Before(target):
		return now, nil
	}
	return time.Time{}, failed(err, id, sandbox.CodeNotFound)
}

// pageSize of a listing.
const pageSize = 100

// ListSandboxes implements sandbox.Inventory. Pages are numbered, so a sandbox
// that is destroyed while one lists can hide another from this listing.
func (p *Provider) ListSandboxes(ctx context.Context, metadata map[string]string, page string) (infos []sandbox.Info, next string, err error) {
	number := 1
	if page != "" {
		if number, err = strconv.Atoi(page); err != nil || number < 1 {
			return nil, "", sandbox.Errorf(sandbox.CodeInvalid, "%q is not a page of this listing", page)
		}
	}
	l, err := p.list(ctx, metadata, number, pageSize)
	if err != nil {
		return nil, "", failed(err, "", sandbox.CodeUnavailable)
	}
	for _, s := range l.Items {
		if carries(s.Metadata, metadata) { // a service may not know the filter
			infos = append(infos, p.info(s, metadata))
		}
	}
	if l.Pagination.HasNextPage {
		next = strconv.Itoa(number + 1)
	}
	return infos, next, nil
}

func (p *Provider) list(ctx context.Context, metadata map[string]string, page, size int) (wire.List, error) {
	projected, err := labels(metadata)
	if err != nil {
		return wire.List{}, err
	}
	q := url.Values{"page": {strconv.Itoa(page)}, "pageSize": {strconv.Itoa(size)}}
	if len(projected) > 0 {
		pairs := url.Values{}
		for k, v := range projected {
			pairs.Set(k, v)
		}
		q.Set("metadata", pairs.Encode())
	}
	var l wire.List
	if err := p.api.do(ctx, call{method: http.MethodGet, path: "sandboxes", query: q, twice: true}, &l); err != nil {
		return l, err
	}
	for _, s := range l.Items {
		if !sandbox.ValidID(s.ID) {
			return l, sandbox.Errorf(sandbox.CodeUnavailable, "the lifecycle service listed a sandbox without a usable id")
		}
	}
	return l, nil
}

// DescribeSandbox implements sandbox.Inventory.
func (p *Provider) DescribeSandbox(ctx context.Context, id string) (sandbox.Info, error) {
	if err := sandbox.CheckID(id); err != nil {
		return sandbox.Info{}, err
	}
	s, err := p.get(ctx, id)
	if err != nil {
		return sandbox.Info{}, failed(err, id, sandbox.CodeNotFound)
	}
	return p.info(s, nil), nil
}

// FindSandboxByAssignment implements sandbox.AssignmentFinder.
func (p *Provider) FindSandboxByAssignment(ctx context.Context, installation, assignment string) (sandbox.Info, bool, error) {
	if installation == "" || assignment == "" {
		return sandbox.Info{}, false, sandbox.Errorf(sandbox.CodeInvalid, "installation and assignment must be named")
	}
	wanted := map[string]string{
		sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: installation, sandbox.KeyAssignmentID: assignment,
	}
	l, err := p.list(ctx, wanted, 1, 2)
	if err != nil {
		return sandbox.Info{}, false, failed(err, "", sandbox.CodeUnavailable)
	}
	for _, s := range l.Items {
		if !carries(s.Metadata, wanted) {
			return sandbox.Info{}, false, sandbox.Errorf(sandbox.CodeUnavailable, "the lifecycle service listed sandbox %s, which isn't what was asked for", s.ID)
		}
	}
	switch {
	case len(l.Items) == 0 && l.Pagination.TotalItems == 0:
		return sandbox.Info{}, false, nil
	case len(l.Items) != 1 || l.Pagination.TotalItems > 1:
		return sandbox.Info{}, false, sandbox.Errorf(sandbox.CodeAssignmentAmbiguous, "assignment %s has more than one sandbox", assignment)
	}
	return p.info(l.Items[0], wanted), true, nil
}

func (p *Provider) info(s wire.Sandbox, known map[string]string) sandbox.Info {
	i := sandbox.Info{
		ID: s.ID, State: stateOf(s), Reason: plain(detail(s), "", textLimit),
		Metadata: restore(s.Metadata, known), CreatedAt: s.CreatedAt, ExpiresAt: end(s),
	}
	if p.installation != "" {
		i.Metadata = restore(i.Metadata, map[string]string{sandbox.KeyInstallation: p.installation})
	}
	if s.Image != nil {
		i.Image = s.Image.URI
	}
	return i
}
