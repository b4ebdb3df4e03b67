/* tidewheel.rollout.evidence.processes for simulations by the thousand: same order, same formulas. */
#include <math.h>

/* Stirling's series after a shift to 8 and more: within 1e-13 of lgamma, several times as fast. */
static double log_gamma(double x)
{
    double product = 1.0;
    while (x < 8.0) {
        product *= x;
        x += 1.0;
    }
    double inverse = 1.0 / x, square = inverse * inverse;
    double series = inverse * (1.0 / 12 - square * (1.0 / 360 - square * (1.0 / 1260 - square * (1.0 / 1680
                    - square * (1.0 / 1188 - square * (691.0 / 360360 - square / 156))))));
    return (x - 0.5) * log(x) - x + 0.91893853320467274178 + series - log(product);
}

static void accumulate(double *totals, int columns, const double *counts, double limit_odds, const double *odds_ratios,
                       int ratios, const double *noise_levels, int levels)
{
    int cell = 0, cells = ratios * levels;
    for (int r = 0; r < ratios; r++) {
        double odds = limit_odds * odds_ratios[r];
        double share = odds / (1 + odds), rest = 1 / (1 + odds);
        double log_share = log(share), log_rest = log(rest);
        for (int l = 0; l < levels; l++, cell++) {
            double noise = noise_levels[l];
            double a = 0, b = 0, whole = 0, of_a = 0, of_b = 0, of_whole = 0;
            if (noise > 0) {
                a = 1 / (rest * noise * noise);
                b = 1 / (share * noise * noise);
                whole = a + b;
                of_a = log_gamma(a);
                of_b = log_gamma(b);
                of_whole = log_gamma(whole);
            }
            for (int c = 0; c < columns; c++) {
                double x = counts[2 * c], y = counts[2 * c + 1];
                if (x + y == 0)
                    continue;
                if (noise > 0)
                    totals[c * cells + cell] += of_whole - of_a - of_b + (x > 0 ? log_gamma(x + a) : of_a)
                                                + (y > 0 ? log_gamma(y + b) : of_b) - log_gamma(x + y + whole);
                else
                    totals[c * cells + cell] += x * log_share + y * log_rest;
            }
        }
    }
}

/* One block. Totals are laid out per question: the nulls of all columns, then the alternatives of all columns. */
void add_block(double *totals, int columns, const double *counts, double limit_odds, const double *odds_ratios,
               int ratios, const double *noise_levels, int levels)
{
    double one = 1.0;
    accumulate(totals, columns, counts, limit_odds, &one, 1, noise_levels, levels);
    accumulate(totals + columns * levels, columns, counts, limit_odds, odds_ratios, ratios, noise_levels, levels);
}

/* Logarithm of the mean alternative over the largest null, per column. */
void weigh(double *evidence, const double *totals, int columns, int ratios, int levels)
{
    const double *alternatives = totals + columns * levels;
    int cells = ratios * levels;
    for (int c = 0; c < columns; c++) {
        double null = -INFINITY, top = -INFINITY, sum = 0;
        for (int l = 0; l < levels; l++)
            null = fmax(null, totals[c * levels + l]);
        for (int i = 0; i < cells; i++)
            top = fmax(top, alternatives[c * cells + i]);
        for (int i = 0; i < cells; i++)
            sum += exp(alternatives[c * cells + i] - top);
        evidence[c] = top + log(sum / cells) - null;
    }
}
