package execd

import "time"

// WithSilence is c for peers that may be silent for so long.
func (c Config) WithSilence(d time.Duration) Config {
	c.silence = d
	return c
}
