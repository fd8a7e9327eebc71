package conform

import (
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// slack is what clocks and rounding may make of a time.
const slack = 5 * time.Second

func leaseClauses() []Clause[*Stage] {
	return []Clause[*Stage]{
		{ID: "lease.ttl", Doc: "A sandbox's scheduled end is its creation plus the TTL of its spec.",
			Check: func(ctx context.Context, s *Stage) error {
				const ttl = 17 * time.Minute
				before := time.Now()
				h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.TTL = ttl })
				if err != nil {
					return NoError("creating a sandbox with a TTL of 17 minutes", err)
				}
				after := time.Now()
				at, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if at.Before(before.Add(ttl-slack)) || at.After(after.Add(ttl+slack)) {
					return Unmet("an end 17 minutes after the creation", "%s", afterText(at, before))
				}
				return nil
			}},
		{ID: "lease.short", Doc: "A TTL is honoured or refused, never quietly lengthened.",
			Check: func(ctx context.Context, s *Stage) error {
				const ttl = time.Second
				h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.TTL = ttl })
				if err != nil {
					return Refused("a TTL of one second, which this backend doesn't take,", err, sandbox.CodeInvalid)
				}
				after := time.Now()
				at, err := s.expiresAt(ctx, h)
				if errors.Is(err, sandbox.ErrNotFound) {
					return nil // it is over already
				}
				if err != nil {
					return err
				}
				if at.IsZero() || at.After(after.Add(ttl+slack)) {
					return Unmet("an end one second after the creation, or a refusal", "%s", afterText(at, after))
				}
				return nil
			}},
		{ID: "lease.none", Doc: "A TTL of zero means no scheduled end, which a renewal doesn't change, or is refused.",
			Check: func(ctx context.Context, s *Stage) error {
				h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.TTL = 0 })
				if err != nil {
					return Refused("a sandbox without a scheduled end, which this backend doesn't have,", err, sandbox.CodeInvalid)
				}
				if at, err := s.expiresAt(ctx, h); err != nil || !at.IsZero() {
					return errors.Join(err, unmetIf(err == nil, "no scheduled end", "%v", at))
				}
				at, err := s.renew(ctx, h, time.Hour)
				if err != nil {
					return err
				}
				if !at.IsZero() {
					return Unmet("a renewal to leave a sandbox without an end as it is", "an end at %v", at)
				}
				if at, err := s.expiresAt(ctx, h); err != nil || !at.IsZero() {
					return errors.Join(err, unmetIf(err == nil, "no scheduled end after a renewal", "%v", at))
				}
				return nil
			}},
		{ID: "renew.extends", Doc: "Renew sets the end to now plus its ttl at least, and returns the end that holds.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				before := time.Now()
				at, err := s.renew(ctx, h, 2*time.Hour)
				if err != nil {
					return err
				}
				if !at.IsZero() && at.Before(before.Add(2*time.Hour-slack)) {
					return Unmet("an end in two hours at least", "%s", afterText(at, before))
				}
				holds, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if d := holds.Sub(at); d > slack || d < -slack {
					return Unmet("the end that Renew returned, "+timeText(at), "%v", holds)
				}
				return nil
			})},
		{ID: "renew.longer", Doc: "Renew never shortens: a ttl that ends earlier leaves the end as it is.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				before, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				at, err := s.renew(ctx, h, time.Minute)
				if err != nil {
					return err
				}
				after, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if earlier(at, before) || earlier(after, before) {
					return Unmet("the end "+timeText(before)+" to stay", "Renew gave %v, and %v holds", at, after)
				}
				return nil
			})},
		{ID: "renew.nothing", Doc: "A renewal by nothing or less changes nothing.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				before, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				for _, ttl := range []time.Duration{0, -time.Hour} {
					if at, err := s.Renew(ctx, h.SandboxID(), ttl); err == nil && earlier(at, before) {
						return Unmet("the end to stay, or a refusal", "a renewal by %v moved it from %v to %v", ttl, before, at)
					}
				}
				after, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if earlier(after, before) {
					return Unmet("the end "+timeText(before)+" to stay", "%v", after)
				}
				return s.exists(ctx, h.SandboxID())
			})},
		{ID: "renew.together", Doc: "Of renewals at once the longest holds.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				before := time.Now()
				err := together(8, func(i int) error {
					_, err := s.renew(ctx, h, time.Duration(8-i)*time.Hour)
					return err
				})
				if err != nil {
					return err
				}
				at, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if !at.IsZero() && at.Before(before.Add(8*time.Hour-slack)) {
					return Unmet("an end in eight hours", "%s", afterText(at, before))
				}
				return nil
			})},
		{ID: "expiry.ends", Doc: "A sandbox whose end has come is gone, and Connect says so.",
			Timeout: 10 * time.Minute,
			Check: func(ctx context.Context, s *Stage) error {
				h, err := s.shortLived(ctx)
				if err != nil {
					return err
				}
				ended := false
				if _, err := eventually(ctx, s.ShortTTL+time.Minute, func() (bool, error) {
					_, err := s.Connect(ctx, h.SandboxID())
					ended = errors.Is(err, sandbox.ErrGone)
					return ended, nil
				}); err != nil {
					return NoError("waiting for a sandbox to expire", err)
				}
				if !ended {
					return Unmet("SANDBOX_GONE within a minute after the end", "the sandbox can still be connected to")
				}
				return nil
			}},
		{ID: "expiry.renewed", Doc: "A sandbox that was renewed lives past its first end.",
			Timeout: 10 * time.Minute,
			Check: func(ctx context.Context, s *Stage) error {
				h, err := s.shortLived(ctx)
				if err != nil {
					return err
				}
				first, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if _, err := s.renew(ctx, h, s.ShortTTL+10*time.Minute); err != nil {
					return err
				}
				t := time.NewTimer(time.Until(first) + 2*time.Second)
				defer t.Stop()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-t.C:
				}
				if err := s.exists(ctx, h.SandboxID()); err != nil {
					return err
				}
				return works(ctx, h)
			}},
	}
}

// shortLived makes a sandbox with the backend's shortest lease.
func (s *Stage) shortLived(ctx context.Context) (sandbox.Handle, error) {
	if s.ShortTTL <= 0 {
		return nil, Skip("no short lease was named, and waiting for the end of a longer one would take too long")
	}
	h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.TTL = s.ShortTTL })
	return h, NoError("creating a sandbox with a short lease", err)
}

// expiresAt asks for the end; a backend that can't say skips the clause.
func (s *Stage) expiresAt(ctx context.Context, h sandbox.Handle) (time.Time, error) {
	at, err := s.ExpiresAt(ctx, h.SandboxID())
	if errors.Is(err, sandbox.ErrUnsupported) {
		return at, Skip("the backend can't say when a sandbox ends")
	}
	if errors.Is(err, sandbox.ErrNotFound) {
		return at, err
	}
	return at, NoError("asking when a sandbox ends", err)
}

// renew renews; a backend that can't skips the clause.
func (s *Stage) renew(ctx context.Context, h sandbox.Handle, ttl time.Duration) (time.Time, error) {
	at, err := s.Renew(ctx, h.SandboxID(), ttl)
	if errors.Is(err, sandbox.ErrUnsupported) {
		return at, Skip("the backend can't renew")
	}
	return at, NoError("renewing a sandbox", err)
}

// afterText says how long after start a sandbox ends.
func afterText(end, start time.Time) string {
	if end.IsZero() {
		return "no scheduled end"
	}
	return "an end " + end.Sub(start).Round(time.Second).String() + " after that"
}

// earlier reports whether end a comes before end b, where zero is never.
func earlier(a, b time.Time) bool {
	return !a.IsZero() && (b.IsZero() || a.Before(b.Add(-time.Second)))
}

func unmetIf(is bool, expected, seen string, args ...any) error {
	if !is {
		return nil
	}
	return Unmet(expected, seen, args...)
}
