package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// watch waits, in a task, for a run of a sandbox to end by itself and records
// it. A run that a pause or a delete ends is theirs to record.
func (s *Service) watch(id string, pid int) {
	s.tasks.start(0, false, func(ctx context.Context) {
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			exit, err := s.rt.Wait(ctx, id, pid)
			if err == nil {
				s.ended(ctx, id, pid, exit)
				return
			}
			if ctx.Err() != nil {
				return
			}
			if st, inspectErr := s.rt.Inspect(ctx, id); inspectErr == nil && (st.Status != runtime.StatusRunning || st.PID != pid) {
				s.ended(ctx, id, pid, runtime.Exit{})
				return
			}
			s.log.Warn("a sandbox can't be watched; trying again", "sandbox", id, "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
	})
}

// ended records that a run ended by itself and takes away what it left on the
// host. Its files stay until the sandbox is deleted or expires.
func (s *Service) ended(ctx context.Context, id string, pid int, exit runtime.Exit) {
	m := state.Move{ID: id, PID: pid, From: []string{wire.Running}}
	m.To, m.Reason, m.Message = verdict(exit)
	if _, err := s.move(ctx, m); err != nil {
		if ignoreState(err) != nil {
			s.log.Error("the end of a sandbox couldn't be recorded", "sandbox", id, "error", err)
			s.repair(id, time.Second)
		}
		return
	}
	s.repair(id, 0)
}

// verdict says what a sandbox is whose PID 1 ended.
func verdict(e runtime.Exit) (to, reason, message string) {
	switch {
	case !e.Known:
		return wire.Failed, "entrypoint_exited", "its main process ended; with which status isn't known"
	case e.Signal != "":
		return wire.Failed, "entrypoint_killed", "its main process was killed by " + e.Signal
	case e.Code == 0:
		return wire.Terminated, "entrypoint_exited", "its main process exited with status 0"
	}
	return wire.Failed, "entrypoint_exited", fmt.Sprintf("its main process exited with status %d", e.Code)
}
