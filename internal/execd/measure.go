package execd

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/astrabox/astrabox/internal/execd/metrics"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// watchEvery is the time between two lines of /metrics/watch.
const watchEvery = time.Second

func (s *Server) getMetrics(w http.ResponseWriter, r *http.Request) {
	sample, err := s.meter.Sample(r.Context())
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, err.Error())
		return
	}
	reply(w, http.StatusOK, sample)
}

// watchMetrics sends a line of JSON each second until the client goes away or
// the daemon ends.
func (s *Server) watchMetrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	meter := metrics.New() // what it measures begins with the last line of this answer
	sample, err := meter.Sample(ctx)
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	line := json.NewEncoder(w)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		_ = rc.SetWriteDeadline(time.Now().Add(stallTime))
		if line.Encode(sample) != nil || rc.Flush() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if sample, err = meter.Sample(ctx); err != nil {
			return
		}
	}
}
